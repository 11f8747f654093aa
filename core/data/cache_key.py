"""The key of cached rows: a hash of rows, recipe and its code, options, learned values, processor and model."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.code_digest import digest_code, hash_files
from taskrecipe.data.row_digest import fingerprint, image_columns
from taskrecipe.recipe import Recipe, learned_values
from taskrecipe.system.library_output import quiet_libraries

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.model import ModelSource

LAYOUT = 1
"""The version of the format of entries. A new number makes all older entries unknown."""


def cache_key(recipe: Recipe, rows: Dataset, split: str, source: ModelSource) -> str | None:
    """Return the key under which a split is cached; None if the processor can't be hashed."""
    try:
        processor = _hash_processor(recipe.processor)
    except TypeError:
        return None
    parts = {
        "layout": LAYOUT,
        "rows": fingerprint(rows),
        "images": _hash_image_paths(rows),
        "split": split,
        "recipes": [describe_recipe(part) for part in _walk_recipes(recipe)],
        "processor": processor,
        "model": [source.type, _read_text(source.folder and source.folder / "config.json"), source.config_values],
        "libraries": {name: version(name) for name in ("datasets", "tokenizers", "transformers")},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _walk_recipes(recipe: Recipe) -> Iterator[Recipe]:
    """Yield the recipe, and the recipes among its attributes."""
    yield recipe
    for value in vars(recipe).values():
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
        for part in inner:
            if isinstance(part, Recipe):
                yield from _walk_recipes(part)


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe's work on rows depends on: its class and code, its options, what it has learned."""
    kinds = [kind for kind in type(recipe).__mro__ if issubclass(kind, Recipe)]
    return {
        "class": f"{type(recipe).__module__}.{type(recipe).__qualname__}",
        "code": [digest_code(kind.__module__) for kind in kinds],
        "options": recipe.options.model_dump(mode="json"),
        "learned": learned_values(recipe),
    }


def _hash_processor(processor: Any) -> Any:
    """Return a hash of what a processor writes when it is saved. Raise `TypeError` if it can't be saved."""
    if processor is None:
        return None
    if isinstance(processor, Mapping):
        return {str(name): _hash_processor(part) for name, part in processor.items()}
    if isinstance(processor, list | tuple):
        return [_hash_processor(part) for part in processor]
    if not hasattr(processor, "save_pretrained"):
        raise TypeError(f"a {type(processor).__name__} can't be saved")
    with tempfile.TemporaryDirectory() as name, quiet_libraries("transformers"):
        folder = Path(name)
        processor.save_pretrained(folder)
        _forget_last_call(folder / "tokenizer.json")
        return hash_files(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def _forget_last_call(tokenizer: Path) -> None:
    """Drop the truncation and padding of the last call, which tokenizers save although every call sets them again."""
    if tokenizer.is_file():
        content = json.loads(tokenizer.read_text(encoding="utf-8"))
        tokenizer.write_text(json.dumps({**content, "truncation": None, "padding": None}), encoding="utf-8")


def _read_text(path: Path | None) -> str | None:
    return path.read_text(encoding="utf-8") if path and path.is_file() else None


def _hash_image_paths(rows: Dataset) -> str | None:
    """Return a hash of the paths of image files, because preprocessed rows contain them."""
    import pyarrow.compute as pc

    names = image_columns(rows)
    if not names:
        return None
    digest = hashlib.sha256()
    for table in rows.select_columns(names).with_format("arrow").iter(1000):
        for name in names:
            digest.update(json.dumps(pc.struct_field(table[name], "path").to_pylist()).encode())
    return digest.hexdigest()
