"""What preprocessed rows are made of, as one number: rows, recipe and its code, options, labels, processor, model."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.core.data.fingerprint import fingerprint, picture_columns
from taskrecipe.core.quiet import quiet
from taskrecipe.core.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

LAYOUT = 1
"""Of an entry of the cache; another number makes all earlier ones unknown."""


def cache_key(recipe: Recipe, rows: Dataset, split: str, source: ModelSource) -> str | None:
    """The name under which a split is cached; None where the processor is of a kind that can't be told apart."""
    try:
        processor = _processor(recipe.processor)
    except TypeError:
        return None
    parts = {
        "layout": LAYOUT,
        "rows": fingerprint(rows),
        "pictures": _picture_paths(rows),
        "split": split,
        "recipes": [_recipe(part) for part in _with_inner(recipe)],
        "processor": processor,
        "model": [source.type, _text(source.folder and source.folder / "config.json"), source.config_values],
        "libraries": {name: version(name) for name in ("datasets", "tokenizers", "transformers")},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _with_inner(recipe: Recipe) -> Iterator[Recipe]:
    """The recipe, and those it wraps."""
    yield recipe
    for value in vars(recipe).values():
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
        for part in inner:
            if isinstance(part, Recipe):
                yield from _with_inner(part)


def _recipe(recipe: Recipe) -> dict[str, Any]:
    kinds = [kind for kind in type(recipe).__mro__ if issubclass(kind, Recipe)]
    return {
        "class": f"{type(recipe).__module__}.{type(recipe).__qualname__}",
        "code": [_code(kind.__module__) for kind in kinds],
        "options": recipe.options.model_dump(mode="json"),
        "labels": list(recipe.labels),
    }


@cache
def _code(module_name: str) -> str:
    """The source of a module and of all beside and below it, as what it calls is most likely there."""
    module = sys.modules[module_name]
    file = Path(str(module.__file__))
    files = sorted(file.parent.rglob("*.py")) if module.__package__ else [file]
    return _hash_files(file.parent, files)


def _processor(processor: Any) -> Any:
    """What a processor writes when it is saved, as one number; a `TypeError` if it can't be saved."""
    if processor is None:
        return None
    if isinstance(processor, Mapping):
        return {str(name): _processor(part) for name, part in processor.items()}
    if isinstance(processor, list | tuple):
        return [_processor(part) for part in processor]
    if not hasattr(processor, "save_pretrained"):
        raise TypeError(f"a {type(processor).__name__} can't be saved")
    with tempfile.TemporaryDirectory() as name, quiet("transformers"):
        folder = Path(name)
        processor.save_pretrained(folder)
        _forget_last_call(folder / "tokenizer.json")
        return _hash_files(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def _forget_last_call(tokenizer: Path) -> None:
    """Drop how the tokenizer was last called to truncate and pad, which it saves though every call says it anew."""
    if tokenizer.is_file():
        content = json.loads(tokenizer.read_text(encoding="utf-8"))
        tokenizer.write_text(json.dumps({**content, "truncation": None, "padding": None}), encoding="utf-8")


def _text(path: Path | None) -> str | None:
    return path.read_text(encoding="utf-8") if path and path.is_file() else None


def _picture_paths(rows: Dataset) -> str | None:
    """Where picture files are, which counts here: preprocessed rows keep these paths."""
    import pyarrow.compute as pc

    names = picture_columns(rows)
    if not names:
        return None
    digest = hashlib.sha256()
    for table in rows.select_columns(names).with_format("arrow").iter(1000):
        for name in names:
            digest.update(json.dumps(pc.struct_field(table[name], "path").to_pylist()).encode())
    return digest.hexdigest()


def _hash_files(root: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()
