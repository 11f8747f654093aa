"""From `[data]` and `[model]` to checked rows and a model's source: hub, local files, or the recipe's sample."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.core.data import columns, files, hub, hub_rows, splits
from taskrecipe.core.data.beside import made_beside
from taskrecipe.core.data.fingerprint import file_fingerprint, fingerprint
from taskrecipe.core.data.overlap import warn_of_overlap
from taskrecipe.core.data.streams import blocks, stored, typed
from taskrecipe.core.errors import DataError
from taskrecipe.core.model import ModelSource
from taskrecipe.core.notes import collected
from taskrecipe.core.registry import installed

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.core.recipe import Recipe, Splits
    from taskrecipe.core.spec.spec import Spec

__all__ = ["Loaded", "blocks", "load", "missing"]

Origin = Literal["hub", "files", "sample"]


@dataclass
class Loaded:
    """What a run trains on."""

    splits: Splits
    """By our names; with `[data].streaming`, `train` is an `IterableDataset`."""
    source: ModelSource
    origin: Origin
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What each split's rows are, as one number that is the same on every machine."""
    warnings: list[str] = field(default_factory=list)
    commit: str | None = None
    """The commit of the hub's data set."""


def missing(spec: Spec) -> str | None:
    """Why data or model can't be had, or None; an error unless the spec asks for sample data in that case."""
    absent = None if spec.data.sample else _absent(spec)
    if absent is not None and spec.data.offline == "error":
        raise DataError(absent)
    return absent


def load(spec: Spec, recipe: Recipe, folder: Path) -> Loaded:
    """Load rows and find the model, under our names and checked; a sample's tiny model is written into `folder`."""
    with collected() as notes:
        loaded = _sample(spec, recipe, folder) if spec.data.sample else _given(spec, recipe)
        loaded.splits = {split: _limited(rows, spec, split) for split, rows in loaded.splits.items()}
        _check(loaded, recipe)
        stored_splits = {name: rows for name, rows in loaded.splits.items() if not _is_stream(rows)}
        loaded.fingerprint |= {split: fingerprint(rows) for split, rows in stored_splits.items()}
    loaded.warnings = notes
    return loaded


def _absent(spec: Spec) -> str | None:
    for is_cached, sentence in _wanted(installed().recipe(spec.recipe)(spec)):
        if not is_cached and hub.unreachable():
            return sentence()
    return None


def _wanted(recipe: Recipe) -> Iterator[tuple[object, Callable[[], str]]]:
    """What is needed of the hub, one by one: whether the cache has it, and what to say if it can't be had."""
    for source in _models(recipe):
        yield from _wanted_of(source)
    parts, data = recipe.parts(), recipe.spec.data
    for part in parts.values():
        yield from _wanted(part)
    if data.path is not None and not parts:
        repo = hub.Repo("dataset", data.path, data.revision)
        yield hub_rows.cached(repo, data.name), partial(hub_rows.absent, repo, data.name)


def _wanted_of(model: ModelSource) -> Iterator[tuple[object, Callable[[], str]]]:
    if model.name is not None and not Path(model.name).is_dir():
        repo = hub.Repo("model", model.name, model.revision)
        yield hub.cached_model(repo, "weights" if model.pretrained else "config"), partial(hub.absent, repo)
    if model.processor is not None and not Path(model.processor).is_dir():
        repo = hub.Repo("model", model.processor)
        yield hub.cached_model(repo, "processor"), partial(hub.absent, repo)


def _models(recipe: Recipe) -> list[ModelSource]:
    """The model that is trained, and after it those that the recipe reads besides."""
    return [ModelSource.of(recipe.spec.model), *recipe.models()]


def _fetched(recipe: Recipe) -> ModelSource:
    """The model that is trained, once all models are on this machine."""
    sources = _models(recipe)
    for source in sources:
        source.fetch()
    return sources[0]


def _sample(spec: Spec, recipe: Recipe, folder: Path) -> Loaded:
    """The recipe's own data and model; a split that only the spec names is a copy of one that is measured on."""
    with made_beside(folder) as made:
        rows = recipe.sample(made)
    measured = [split for split in rows if split != "train"]
    for split in splits.evaluated(spec, recipe):
        rows.setdefault(split, rows[measured[0]])
    return Loaded(rows, ModelSource(str(folder)), "sample")


def _joined(recipe: Recipe) -> Loaded:
    """The data of all the recipe's parts, each as its own spec names it, made one."""
    source, loaded = _fetched(recipe), {}
    for name, part in recipe.parts().items():
        try:
            loaded[name] = _given(part.spec, part)
            rows = loaded[name].splits
            loaded[name].splits = {split: _limited(found, part.spec, split) for split, found in rows.items()}
            _inspect(loaded[name], part)
        except DataError as error:
            raise DataError(f"{name!r}: {error}") from error
    origin: Origin = "hub" if any(one.origin == "hub" for one in loaded.values()) else "files"
    return Loaded(recipe.join({name: one.splits for name, one in loaded.items()}), source, origin)


def _given(spec: Spec, recipe: Recipe) -> Loaded:
    """The data that the spec names, under our names of splits and columns."""
    if recipe.parts():
        return _joined(recipe)
    if not (spec.data.path or spec.data.files):
        raise DataError("[data] names neither a path nor files; set [data].path, [data.files], or [data].sample = true")
    loaded = (_from_hub if spec.data.path else _from_files)(spec, recipe, _fetched(recipe))
    if spec.data.streaming:
        loaded.splits["train"], _ = typed(loaded.splits["train"])
    for split, rows in loaded.splits.items():
        loaded.splits[split] = columns.renamed(rows, spec.data.columns, split)
    if spec.data.holdout:
        _hold_out(loaded.splits, spec, recipe)
    for split in set(spec.data.limit) - set(loaded.splits):
        warnings.warn(f"[data.limit] names {split!r}, which is not a split of this run", stacklevel=2)
    return loaded


def _from_hub(spec: Spec, recipe: Recipe, source: ModelSource) -> Loaded:
    data = spec.data
    repo = hub.Repo("dataset", str(data.path), data.revision)
    theirs, commit = hub_rows.load(repo, data.name, streaming=data.streaming)
    names = splits.chosen(spec, recipe, theirs)
    rows = {ours: theirs[name] for ours, name in names.items()}
    prints = {}
    if data.streaming:
        rows = {ours: found if ours == "train" else stored(_limited(found, spec, ours)) for ours, found in rows.items()}
        prints["train"] = _digest([repo.id, data.name, commit, names["train"]])
    return Loaded(rows, source, "hub", prints, commit=commit)


def _from_files(spec: Spec, recipe: Recipe, source: ModelSource) -> Loaded:
    names = splits.chosen(spec, recipe, spec.data.files)
    streamed = names["train"] if spec.data.streaming else None
    theirs = files.load(spec.data, set(names.values()), streamed)
    prints = {}
    if streamed is not None:
        paths = files.found("train", spec.data.files[streamed])
        prints["train"] = _digest([file_fingerprint(path) for path in paths])
    return Loaded({ours: theirs[name] for ours, name in names.items()}, source, "files", prints)


def _hold_out(rows: Splits, spec: Spec, recipe: Recipe) -> None:
    wanted = [split for split in splits.evaluated(spec, recipe) if split not in rows]
    if not wanted:
        warnings.warn("[data].holdout is not used: the data has all the splits that are measured on", stacklevel=2)
    elif len(wanted) > 1 or spec.data.streaming:
        why = "rows of a stream can't be set aside" if spec.data.streaming else f"{', '.join(wanted)} are missing"
        raise DataError(f"[data].holdout makes one split out of stored rows, but {why}", split=wanted[0])
    else:
        rows["train"], rows[wanted[0]] = splits.hold_out(rows["train"], float(spec.data.holdout or 0), spec.seed)


def _limited(rows: Any, spec: Spec, split: str) -> Any:
    limit = spec.data.limit.get(split)
    if limit is None:
        return rows
    return rows.take(limit) if _is_stream(rows) else rows.select(range(min(limit, len(rows))))


def _check(loaded: Loaded, recipe: Recipe) -> None:
    """Refuse what can't be trained on."""
    recipe.check(_inspect(loaded, recipe))


def _inspect(loaded: Loaded, recipe: Recipe) -> Splits:
    """The rows to check, in which all that any recipe needs is there; of a stream, its first rows stand for all."""
    looked_at = {split: _first_rows(rows) if _is_stream(rows) else rows for split, rows in loaded.splits.items()}
    for split, rows in looked_at.items():
        if not len(rows):
            raise DataError("there are no rows", split=split)
        if any(name.startswith("__index_level_") for name in rows.column_names):  # what pandas makes of such rows
            raise DataError("rows have more fields than the header names", split=split)
        columns.require(rows.column_names, recipe.columns(), split)
    shared = [name for name in recipe.columns() if all(name in rows.column_names for rows in looked_at.values())]
    if shared and loaded.origin != "sample" and not recipe.parts():  # whose rows have been compared already
        warn_of_overlap(looked_at, shared)
    return looked_at


def _first_rows(stream: Any) -> Dataset:
    from datasets import Dataset

    return typed(stream)[1] or Dataset.from_dict({})


def _is_stream(rows: Any) -> bool:
    from datasets import IterableDataset

    return isinstance(rows, IterableDataset)


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
