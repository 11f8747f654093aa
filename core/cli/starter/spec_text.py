"""Write a spec for one's own data: what was guessed, with comments, and the rest from the recipe's example."""

from __future__ import annotations

import os
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taskrecipe.cli.help.examples import example_spec, summary
from taskrecipe.cli.help.fields import format_toml
from taskrecipe.cli.starter.file_guesses import guess_coco, guess_image_folder, guess_plain_text, guess_squad, guess_voc
from taskrecipe.cli.starter.guess import Guess, Setting, add_splits, find_splits
from taskrecipe.cli.starter.table_facts import TableFacts, read_table
from taskrecipe.cli.starter.text_guesses import TABLE_GUESSES
from taskrecipe.data.coco import is_coco_file
from taskrecipe.data.files import ENDINGS, guess_by_name
from taskrecipe.data.squad_json import is_squad_file
from taskrecipe.errors import DataError, SpecError, UsageError
from taskrecipe.plugins.registry import Plugin
from taskrecipe.recipe import Recipe
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.validation import validate
from taskrecipe.system.terminal import printable

KEPT_TABLES = ("model", "train", "optimizer", "schedule")
"""Tables that are taken over from the example: they don't depend on the data."""

OBJECTS = ("detection", "instance_segmentation")


def write_spec_for(plugin: Plugin, data: Path, target: Path) -> str:
    """Return the text of a spec that trains a recipe on these files. `target` is where it will be."""
    if not data.exists():
        raise UsageError(f"--data: there is no file or folder '{data}'")
    recipe: type[Recipe] = plugin.load()
    example = tomllib.loads(example_spec(plugin, recipe))
    splits = find_splits(data)
    guess = _guess(plugin.name, recipe, data, splits["train"], example)
    task = {**_required_options(recipe, example), **{key: value for key, (value, _) in guess.task.items()}}
    values = {"spec_version": 1, "recipe": plugin.full_name, "task": task, "train": example["train"]}
    made = recipe(Spec.model_validate(values))
    if not guess.maps:
        add_splits(guess, splits, made.splits())
    else:
        guess.data["holdout"] = 0.1, "a tenth of the images is set aside to evaluate on"
    text = "\n".join(_write(plugin, recipe, example, guess, (data, target))) + "\n"
    _require_valid(text, data)
    return text


def _require_valid(text: str, data: Path) -> None:
    """Raise if a name in the data can't be part of a spec, such as that of a column with control characters."""
    with tempfile.TemporaryDirectory(prefix="taskrecipe-") as folder:
        path = Path(folder) / "spec.toml"
        path.write_text(text, encoding="utf-8")
        try:
            validate(path)
        except SpecError as error:
            reason = error.problems[0].message
            raise DataError(f"no valid spec can name what is in '{data}': {reason}") from None


def _guess(name: str, recipe: type[Recipe], data: Path, train: Path, example: Mapping[str, Any]) -> Guess:
    """Guess what the files say about a spec, by what kind of files they are."""
    if data.is_dir():
        return guess_voc(data, name) if any(data.glob("*.xml")) else guess_image_folder(data, train, name)
    if is_coco_file(data):
        if name not in OBJECTS:
            raise DataError(f"'{data}' is COCO json, which is for recipes {' and '.join(map(repr, OBJECTS))}")
        return guess_coco(data, name)
    if is_squad_file(data):
        if name != "question_answering":
            raise DataError(f"'{data}' is SQuAD's json, which is for recipe 'question_answering'")
        return guess_squad(data)
    format = guess_by_name(data)
    if format == "text":
        return guess_plain_text(data, name)
    if format not in ("csv", "tsv", "jsonl", "parquet"):
        raise DataError(f"'{data}' can't be read: the name of a file must end in {', '.join(ENDINGS)}")
    if name in (*OBJECTS, "image_classification", "mim", "semantic_segmentation"):
        raise DataError(f"'{data}' is a table; recipe {name!r} needs a folder of images, or COCO json for objects")
    table = read_table(data, format)
    guess = TABLE_GUESSES[name](table) if name in TABLE_GUESSES else _match_names(recipe, table, example, name)
    guess.data |= {key: (value, f"guessed: {reason}") for key, (value, reason) in table.settings.items()}
    guess.notes.append(f"{table.records:,} rows read; columns: {', '.join(column.name for column in table.columns)}")
    return guess


def _match_names(recipe: type[Recipe], table: TableFacts, example: Mapping[str, Any], name: str) -> Guess:
    """Match the columns of any recipe by their names alone."""
    if name == "multitask":
        raise UsageError("recipe 'multitask' has data for each of its tasks: write the spec without --data")
    values = {"spec_version": 1, "recipe": name, "task": example.get("task", {}), "train": example["train"]}
    columns = recipe(Spec.model_validate(values)).columns()
    found = {ours: table.find(ours.lower()) for ours in columns}
    missing = [ours for ours, column in columns.items() if column.required and found[ours] is None]
    if missing:
        raise DataError(
            f"'{table.path}' has no column {', '.join(map(repr, missing))}, which recipe {name!r} needs; "
            f"found {table.describe_columns()}. Write the spec without --data and name it in [data.columns]"
        )
    return Guess(columns={ours: (column.name, "") for ours, column in found.items() if column is not None})


def _required_options(recipe: type[Recipe], example: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that have no default, with the values of the example."""
    required = [key for key, field in recipe.Options.model_fields.items() if field.is_required()]
    return {key: example["task"][key] for key in required if key in example.get("task", {})}


# Writing --------------------------------------------------------------------------------------------------


def _write(
    plugin: Plugin, recipe: type[Recipe], example: Mapping[str, Any], guess: Guess, paths: tuple[Path, Path]
) -> Iterator[str]:
    data, target = paths
    for note in (f"{data.name}: {summary(recipe)}", *guess.notes):
        yield from textwrap.wrap(_as_comment(note), 116, initial_indent="# ", subsequent_indent="#   ")
    yield "# Comments say what was guessed from the data: check it, and see what goes in with `recipe preview`."
    yield "spec_version = 1"
    yield f"recipe = {format_toml(plugin.name)}"
    yield "seed = 42"
    required = {key: (value, "") for key, value in _required_options(recipe, example).items()}
    yield from _write_table("task", {**required, **_say_guessed(guess.task)}, target)
    yield from _write_table("model", _plain(example.get("model", {})), target)
    yield from _write_table("data", guess.data, target)
    yield from _write_table("data.files", guess.files, target)
    yield from _write_table("data.maps", guess.maps, target)
    yield from _write_table(
        "data.columns", _say_guessed(guess.columns, "the recipe's name of a column = the file's"), target
    )
    for name in KEPT_TABLES[1:]:
        yield from _write_table(name, _plain(example.get(name, {})), target)
    yield from _write_table("evaluate", guess.evaluate, target)


def _say_guessed(settings: Mapping[str, Setting], otherwise: str = "") -> dict[str, Setting]:
    return {key: (value, f"guessed: {reason}" if reason else otherwise) for key, (value, reason) in settings.items()}


def _plain(values: Mapping[str, Any]) -> dict[str, Setting]:
    return {key: (value, "") for key, value in values.items()}


def _write_table(name: str, settings: Mapping[str, Setting], target: Path) -> Iterator[str]:
    if not settings:
        return
    yield ""
    yield f"[{name}]"
    for key, (value, reason) in settings.items():
        shown = _relative(value, target.parent) if isinstance(value, Path) else value
        line = _assign(key, shown)
        yield f"{line:<27} # {_as_comment(reason)}" if reason else line


def _as_comment(text: str) -> str:
    """Return text, which may come from the data, on one line and without control characters."""
    return printable(" ".join(text.split()))


def _relative(path: Path, folder: Path) -> str:
    """Return a path as the spec names it: relative to the spec's folder unless that is far away."""
    relative = os.path.relpath(path.absolute(), folder.absolute())
    return str(path.absolute()) if relative.startswith(f"..{os.sep}..{os.sep}..") else Path(relative).as_posix()


def _assign(key: str, value: Any) -> str:
    assigned = format_toml({key: value})[1:-1]
    return assigned.replace("e-0", "e-") if isinstance(value, float) else assigned
