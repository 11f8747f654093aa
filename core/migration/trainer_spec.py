"""Write a spec for the settings of a Trainer: values converted, each with its origin, and what has no equivalent."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit

from taskrecipe.errors import SpecError, UsageError
from taskrecipe.migration.arguments import Arguments, read_file, read_words
from taskrecipe.migration.scripts import NO_EQUIVALENT, SCRIPTS, Script
from taskrecipe.spec.spec import SPEC_VERSION
from taskrecipe.spec.trainer_names import COUNTERPARTS, NOT_NEEDED, Counterpart
from taskrecipe.spec.validation import validate
from taskrecipe.system.suggestions import did_you_mean
from taskrecipe.system.terminal import printable

TABLES = ("task", "model", "data", "train", "optimizer", "schedule", "evaluate", "checkpoint", "log", "track", "launch")
TRAINER_DEFAULTS: dict[str, Any] = {
    "train.epochs": 3,
    "train.batch_size": 8,
    "train.learning_rate": 5e-5,
    "evaluate.every": "end",
    "checkpoint.every": 500,
}
"""What the Trainer does where a setting is not given, if that differs from our default or we have none."""

SCRIPT_DEFAULTS = {key: TRAINER_DEFAULTS[key] for key in ("train.epochs", "train.batch_size", "train.learning_rate")}
"""The same for scripts without the Trainer: they evaluate after every epoch, as we do."""


@dataclass
class ConvertedSpec:
    """A spec made from settings of a Trainer."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key."""
    origins: dict[str, str] = field(default_factory=dict)
    """The setting that each value came from."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Settings that have no equivalent, and why."""

    def put(self, key: str, value: Any, origin: str) -> None:
        """Set the value of a key, or of the keys of a table."""
        if isinstance(value, Mapping):
            for inner, one in value.items():
                self.put(f"{key}.{inner}", one, origin)
        else:
            self.values[key], self.origins[key] = value, origin

    def drop(self, key: str, reason: str) -> None:
        """Take a key back."""
        del self.values[key]
        self.left_out[self.origins.pop(key)] = reason

    def move_to(self, folder: Path) -> None:
        """Name files by their place from `folder`, where the spec will be: their paths are relative to it."""
        for key in [key for key in self.values if key.startswith("data.files.")]:
            self.values[key] = Path(os.path.relpath(Path(self.values[key]).absolute(), folder.absolute())).as_posix()

    @property
    def text(self) -> str:
        """The spec as TOML, with comments."""
        return "\n".join(_write(self)) + "\n"


def from_trainer(source: str | Path | Sequence[str], recipe: str | None = None) -> ConvertedSpec:
    """Convert settings of transformers' Trainer into a spec: a file, or the words of a command line.

    `recipe` is needed where no script says what is trained. The spec is valid except for what the settings don't say,
    such as the data.
    """
    arguments = read_file(Path(source)) if isinstance(source, str | Path) else read_words(list(source))
    script = _find_script(arguments, recipe)
    made = ConvertedSpec(arguments.source)
    made.put("recipe", script.recipe, arguments.script or "--recipe")
    for key, value in script.fixed.items():
        made.put(key, value, f"{arguments.script}'s default")
    _convert_all(arguments, script, made)
    for key, value in script.adapt(arguments.values).items():
        made.put(key, value, "follows from the options")
    _fill_in_defaults(arguments, made)
    _settle_data(made)
    _leave_out_what_is_wrong(made)
    return made


def _find_script(arguments: Arguments, recipe: str | None) -> Script:
    name = (arguments.script or "").removesuffix("_no_trainer")
    if name in SCRIPTS and recipe in (None, SCRIPTS[name].recipe):
        return SCRIPTS[name]
    if recipe is not None:
        from taskrecipe.plugins.registry import installed

        installed().find("recipes", recipe)
        return next((script for script in SCRIPTS.values() if script.recipe == recipe), Script(recipe))
    if name:
        hint = did_you_mean(name, SCRIPTS)
        raise UsageError(f"no recipe is known for {name}.py{hint}; covered are {', '.join(SCRIPTS)}; or name --recipe")
    raise UsageError(f"{arguments.source} doesn't say what is trained: name the recipe, such as --recipe glue")


def _convert_all(arguments: Arguments, script: Script, made: ConvertedSpec) -> None:
    given = {**_launcher_values(arguments.launched), **arguments.values}
    for name, value in given.items():
        if value is None or _is_default(name, value):
            continue
        ours = _find_counterpart(name, script)
        converted = ours.convert(value, given) if ours else None
        if ours and converted is not None:
            made.put(ours.key, converted, name)
        elif name not in ("task_name", "eval_strategy", "evaluation_strategy", "save_strategy"):
            made.left_out[name] = _why_left_out(name, value)
    _convert_strategies(given, made)


def _launcher_values(launched: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a launcher, such as torchrun; its own words are left out."""
    ignored = (
        "standalone",
        "m",
        "config_file",
        "nnodes",
        "master_addr",
        "master_port",
        "distributed_type",
        "multi_gpu",
    )
    return {name: value for name, value in launched.items() if name not in ignored}


def _is_default(name: str, value: Any) -> bool:
    """Whether a setting says nothing: the value that stands for "not set", or an option that is off."""
    off = {"max_steps": -1, "warmup_steps": 0, "warmup_ratio": 0.0, "logging_steps": 0, "num_machines": 1}
    return (name in off and value == off[name]) or (value is False and name not in ("remove_unused_columns",))


def _find_counterpart(name: str, script: Script) -> Counterpart | None:
    if name in script.options:
        return script.options[name]
    if name == "seed":
        return Counterpart("seed")
    return None if name == "task_name" else COUNTERPARTS.get(name)


def _why_left_out(name: str, value: Any) -> str:
    known = NOT_NEEDED.get(name) or NO_EQUIVALENT.get(name)
    if known:
        return known
    if name in COUNTERPARTS:
        return f"{printable(str(value))[:60]!r} has no equivalent of {COUNTERPARTS[name].key}"
    return "no equivalent"


def _convert_strategies(given: Mapping[str, Any], made: ConvertedSpec) -> None:
    """Say how often is evaluated and saved: a strategy decides which of the other settings counts."""
    for table, names, steps in (
        ("evaluate", ("eval_strategy", "evaluation_strategy"), "eval_steps"),
        ("checkpoint", ("save_strategy",), "save_steps"),
    ):
        strategy = next((given[name] for name in names if name in given), None)
        key = f"{table}.every"
        if strategy == "steps":
            made.put(
                key, given.get(steps) or (given.get("logging_steps") if table == "evaluate" else None) or 500, steps
            )
        elif strategy in ("epoch", "no"):
            made.put(key, "epoch" if strategy == "epoch" else "end", names[0])
        elif table == "evaluate":
            made.values.pop(key, None)  # eval_steps alone has no effect in the Trainer


def _fill_in_defaults(arguments: Arguments, made: ConvertedSpec) -> None:
    defaults = TRAINER_DEFAULTS if arguments.has_trainer else SCRIPT_DEFAULTS
    for key, value in defaults.items():
        if key in made.values or (key == "train.epochs" and "train.updates" in made.values):
            continue
        if key == "train.batch_size":
            value *= made.values.get("train.accumulate", 1) * made.values.get("launch.processes", 1)
        made.put(key, value, "the Trainer's default" if arguments.has_trainer else "the script's default")


def _settle_data(made: ConvertedSpec) -> None:
    """Let files take the place of a data set that a script would use without them."""
    has_files = any(key.startswith("data.files.") for key in made.values)
    if has_files and made.origins.get("data.path", "").endswith("default"):
        for key in ("data.path", "data.name"):
            made.values.pop(key, None)
            made.origins.pop(key, None)
    if has_files and "data.files.validation" in made.values and "data.holdout" in made.values:
        made.drop("data.holdout", "there is a file to evaluate on")


def _leave_out_what_is_wrong(made: ConvertedSpec) -> None:
    """Turn values that the spec can't have into comments. What is missing stays missing: validating says so."""
    for _ in range(len(made.values)):
        wrong = next(iter(_problems(made)), None)
        if wrong is None:
            return
        made.drop(*wrong)


def _problems(made: ConvertedSpec) -> Iterator[tuple[str, str]]:
    """Yield the keys that a validation refuses, and why."""
    lines = list(_write(made))
    with tempfile.TemporaryDirectory(prefix="taskrecipe-") as folder:
        path = Path(folder) / "spec.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        try:
            validate(path)
        except SpecError as error:
            for problem in error.problems:
                key = _key_at(lines, problem.line)
                if key in made.values and key != "recipe" and problem.code != "missing-key":
                    yield key, problem.message


def _key_at(lines: Sequence[str], number: int) -> str:
    """Return the dotted key that is set in a line."""
    table = ""
    for line in lines[:number]:
        if line.startswith("["):
            table = line.strip("[]") + "."
    return table + lines[number - 1].partition(" = ")[0]


# Writing --------------------------------------------------------------------------------------------------


def _write(made: ConvertedSpec) -> Iterator[str]:
    yield f"# Made from {printable(made.source)} by `recipe from-trainer`."
    yield "# Comments name the setting that a value came from."
    yield f"spec_version = {SPEC_VERSION}"
    for key in ("recipe", "seed", "name"):
        if key in made.values:
            yield _line(key, made.values[key], made.origins[key])
    for table in TABLES:
        yield from _write_table(table, made)
    if made.left_out:
        yield ""
        yield "# Not converted:"
        for name, reason in made.left_out.items():
            yield from textwrap.wrap(
                f"{printable(name)}: {reason}", 112, initial_indent="#   ", subsequent_indent="#     "
            )


def _write_table(table: str, made: ConvertedSpec) -> Iterator[str]:
    inside = [key for key in made.values if key.startswith(f"{table}.")]
    headers = sorted({key.rpartition(".")[0] for key in inside}, key=lambda header: (header.count("."), header))
    for header in headers:
        yield ""
        yield f"[{header}]"
        for key in inside:
            if key.rpartition(".")[0] == header:
                yield _line(key.rpartition(".")[2], made.values[key], made.origins[key])


def _line(key: str, value: Any, origin: str) -> str:
    assigned = f"{key} = {tomlkit.item(value).as_string()}"
    assigned = assigned.replace("e-0", "e-") if isinstance(value, float) else assigned
    return f"{assigned:<39} # {printable(origin)}"
