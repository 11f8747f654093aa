"""Load what `[data]` and `[model]` name, from the hub, from files or as the recipe's sample, and check the rows."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe import hub
from taskrecipe.data import columns, files, splits
from taskrecipe.data import hub_datasets as hub_rows
from taskrecipe.data.checks import check_rows, learn_from_rows
from taskrecipe.data.file_digest import digest_files
from taskrecipe.data.image_folders import find_split_folders
from taskrecipe.data.overlap import warn_of_overlap
from taskrecipe.data.places import FilePlace, ImagePlace, Place, SelectedPlace, add_place
from taskrecipe.data.problems import Problems
from taskrecipe.data.remote_files import fetch_remote_files
from taskrecipe.data.row_digest import fingerprint
from taskrecipe.data.streams import fix_types, store_stream
from taskrecipe.errors import DataError
from taskrecipe.model import ModelSource
from taskrecipe.optional import HasParts
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import evaluated_splits, final_splits, needed_splits
from taskrecipe.remote.downloads import name_urls
from taskrecipe.system.atomic_files import create_folder
from taskrecipe.system.python_warnings import collect_warnings

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.recipe import Recipe, Splits
    from taskrecipe.spec.spec import Spec

Origin = Literal["hub", "files", "sample"]

IMAGE_COLUMNS = ("image", "annotation")
"""Columns of recipes that hold images. Texts in them are names of files."""


UNKNOWN_FORMAT: dict[str, Any] = {
    "format": None,
    "quotes": None,
    "header": True,
    "separator": None,
    "encoding": None,
}
"""Keys of `[data]` that say how the run's own files are read, at their defaults."""


@dataclass
class Loaded:
    """What a run trains on."""

    splits: Splits
    """The rows of each split. With `[data].streaming`, `train` is an `IterableDataset`."""
    source: ModelSource
    origin: Origin
    fingerprint: dict[str, str] = field(default_factory=dict)
    """A hash of each split's rows, the same on every machine."""
    warnings: list[str] = field(default_factory=list)
    commit: str | None = None
    """The commit of the hub's data set."""
    places: dict[str, Place] = field(default_factory=dict)
    """For each split what says which record of which file a row is."""
    held_out: dict[str, list[int]] = field(default_factory=dict)
    """The split that `[data].holdout` has made, and the numbers of its rows among all training rows of the data."""

    @contextmanager
    def locate_rows(self) -> Iterator[None]:
        """Add to a `DataError` of the block from which record of which file its row comes."""
        try:
            yield
        except DataError as error:
            located = add_place(error, self.places)
            if located is error:
                raise
            raise located from error


def missing_from_hub(spec: Spec) -> str | None:
    """Why data or model can't be had, or None; an error unless the spec asks for sample data in that case.

    A hub that is only slow is always an error: whoever has a network did not ask for sample data.
    """
    missing = None if spec.data.sample else _find_missing(spec)
    if missing is None:
        return None
    repo, message = missing
    if spec.data.offline == "error" or hub.is_only_slow(repo):
        raise DataError(message)
    return message


def load_data(spec: Spec, recipe: Recipe, folder: Path, *, weights: bool = True) -> Loaded:
    """Load the rows, check them, and find the model. A sample's tiny model is written into `folder`.

    Without `weights`, nothing of a model is fetched but its configuration and processor.
    """
    with collect_warnings() as notes, name_urls():
        if spec.data.sample:
            _warn_of_unused_model(spec)
            loaded = _make_sample(recipe, folder)
        else:
            loaded = _load_named(recipe, _fetch_model(recipe, weights), needed_splits(recipe))
        _warn_of_unused_limits(spec, loaded)
        _finish_loading(loaded, recipe, learns=True)
    loaded.warnings = notes
    return loaded


def load_splits(recipe: Recipe, wanted: Sequence[str], folder: Path) -> Loaded:
    """Load only some splits, for a recipe that has learned already, and check their rows.

    Of a sample, the tiny model is written into `folder` too.
    """
    spec = recipe.spec
    with collect_warnings() as notes, name_urls():
        if spec.data.sample:
            loaded = _make_sample(recipe, folder)
        else:
            # A split that was held out is made of the training rows.
            needed = dict.fromkeys([*(["train"] if spec.data.holdout else []), *wanted])
            loaded = _load_named(recipe, ModelSource(None), list(needed))
        missing = [split for split in wanted if split not in loaded.splits]
        if missing:
            raise DataError(f"there is no such split; there are {', '.join(loaded.splits)}", split=missing[0])
        loaded.splits = {split: loaded.splits[split] for split in wanted}
        _finish_loading(loaded, recipe, learns=False)
    loaded.warnings = notes
    return loaded


def load_files(recipe: Recipe, split: str, paths: Sequence[Path]) -> Loaded:
    """Load other files as a split of their own, for a recipe that has learned already, and check their rows.

    They are read as the run's files were, if they have the same ending. Columns may have their names or ours.
    """
    used = [
        path for given in recipe.spec.data.files.values() for path in ([given] if isinstance(given, str) else given)
    ]
    same_kind = {path.suffix for path in paths} <= {Path(path).suffix for path in used}
    plain = {"files": {split: [str(path) for path in paths]}, "path": None, "sample": False, "holdout": None}
    changes = {**plain, "splits": {}, "limit": {}, "streaming": False, **({} if same_kind else UNKNOWN_FORMAT)}
    other = copy.copy(recipe)
    other.spec = recipe.spec.model_copy(update={"data": recipe.spec.data.model_copy(update=changes)})
    with collect_warnings() as notes, name_urls():
        loaded = _load_from_files(other, ModelSource(None), [split])
        rows = loaded.splits[split]
        names = {ours: theirs for ours, theirs in recipe.spec.data.columns.items() if theirs in rows.column_names}
        loaded.splits[split] = columns.rename_columns(rows, names, split)
        _finish_loading(loaded, other, learns=False)
    loaded.warnings = notes
    return loaded


def _finish_loading(loaded: Loaded, recipe: Recipe, *, learns: bool) -> None:
    """Limit the rows, check them, and compute their fingerprint."""
    loaded.splits = {split: _limit_rows(rows, recipe.spec, split) for split, rows in loaded.splits.items()}
    _place_images(loaded)
    _check(loaded, recipe, learns=learns)
    stored_splits = {name: rows for name, rows in loaded.splits.items() if not _is_stream(rows)}
    loaded.fingerprint |= {split: fingerprint(rows) for split, rows in stored_splits.items()}


def _warn_of_unused_limits(spec: Spec, loaded: Loaded) -> None:
    for split in set(spec.data.limit) - set(loaded.splits):
        warnings.warn(f"[data.limit] names {split!r}, which is not a split of this run", stacklevel=2)


def _find_missing(spec: Spec) -> tuple[hub.Repo, str] | None:
    for repo, is_cached, message in _wanted(installed().recipe(spec.recipe)(spec)):
        if not is_cached and hub.unreachable(repo):
            return repo, message()
    return None


_Wanted = tuple[hub.Repo, object, Callable[[], str]]
"""A repository, whether the cache has what is needed of it, and what to say if it can't be had."""


def _wanted(recipe: Recipe) -> Iterator[_Wanted]:
    """What is needed of the hub, one by one."""
    for source in _list_models(recipe):
        yield from _wanted_of(source)
    parts, data = parts_of(recipe), recipe.spec.data
    for part in parts.values():
        yield from _wanted(part)
    if data.path is not None and not parts:
        repo = hub.Repo("dataset", data.path, data.revision)
        yield repo, hub_rows.find_prepared(repo, data.name), partial(hub_rows.describe_absent, repo, data.name)


def _wanted_of(model: ModelSource) -> Iterator[_Wanted]:
    if model.name is not None and not Path(model.name).is_dir():
        repo = hub.Repo("model", model.name, model.revision)
        part: hub.Part = "weights" if model.pretrained else "config"
        yield repo, hub.cached_model(repo, part), partial(hub.describe_absent, repo)
    if model.processor is not None and not Path(model.processor).is_dir():
        repo = hub.Repo("model", model.processor)
        yield repo, hub.cached_model(repo, "processor"), partial(hub.describe_absent, repo)


def _list_models(recipe: Recipe) -> list[ModelSource]:
    """Return the model that is trained, and those that techniques read besides."""
    further = [source for technique in recipe.spec.techniques for source in technique.models()]
    return [*([ModelSource.of(recipe.spec.model)] if recipe.uses_model else []), *further]


def _fetch_model(recipe: Recipe, weights: bool) -> ModelSource:
    """Download all models, and return the one that is trained; without weights, only the small files of that one."""
    if not weights:
        return replace(ModelSource.of(recipe.spec.model), reads_weights=False)
    for source in _list_models(recipe):
        source.fetch()
    return ModelSource.of(recipe.spec.model)


def _make_sample(recipe: Recipe, folder: Path) -> Loaded:
    """Make the recipe's own data and model. A split that only the spec names is a copy of an evaluated one."""
    with create_folder(folder) as made:
        rows = recipe.sample(made)
    evaluated = [split for split in rows if split != "train"]
    for split in needed_splits(recipe):
        rows.setdefault(split, rows[_find_similar(split, evaluated)])
    return Loaded(rows, ModelSource(str(folder)), "sample")


def _find_similar(split: str, evaluated: list[str]) -> str:
    """Return the split whose rows another one copies: of the same part, if a recipe has parts."""
    part = split.partition("/")[0]
    return next((name for name in evaluated if name.partition("/")[0] == part), evaluated[0])


def _warn_of_unused_model(spec: Spec) -> None:
    given = spec.model.model_dump(exclude_defaults=True, exclude={"quantize"})
    names = [f"[model].{key}" if key != "config" else "[model.config]" for key in given]
    if names:
        verb = "is" if len(names) == 1 else "are"
        message = f"{', '.join(names)} {verb} not used: the sample brings its own tiny model"
        warnings.warn(message, stacklevel=2)


def _load_parts(whole: HasParts, source: ModelSource, wanted: Sequence[str]) -> Loaded:
    """Load the data of all parts of a recipe, each as its own spec says, and join it."""
    loaded: dict[str, Loaded] = {}
    for name, part in whole.parts().items():
        further = [split.removeprefix(f"{name}/") for split in wanted if split.startswith(f"{name}/")]
        needed = [*(["train"] if "train" in wanted else []), *evaluated_splits(part), *final_splits(part), *further]
        try:
            loaded[name] = _load_named(part, source, list(dict.fromkeys(needed)))
            rows = loaded[name].splits
            loaded[name].splits = {split: _limit_rows(found, part.spec, split) for split, found in rows.items()}
            _inspect(loaded[name], part)
        except DataError as error:
            raise DataError(f"{name!r}: {error}") from error
    origin: Origin = "hub" if any(one.origin == "hub" for one in loaded.values()) else "files"
    held_out = {f"{name}/{split}": rows for name, one in loaded.items() for split, rows in one.held_out.items()}
    return Loaded(whole.join({name: one.splits for name, one in loaded.items()}), source, origin, held_out=held_out)


def _load_named(recipe: Recipe, source: ModelSource, wanted: Sequence[str]) -> Loaded:
    """Load the wanted splits of the data that the spec names, with our names of splits and columns."""
    if isinstance(recipe, HasParts):
        return _load_parts(recipe, source, wanted)
    spec = recipe.spec
    if not (spec.data.path or spec.data.files):
        raise DataError("[data] names neither a path nor files; set [data].path, [data.files], or [data].sample = true")
    loaded = (_load_from_hub if spec.data.path else _load_from_files)(recipe, source, wanted)
    if spec.data.streaming and "train" in wanted:
        loaded.splits["train"], _ = fix_types(loaded.splits["train"])
    for split, rows in loaded.splits.items():
        loaded.splits[split] = columns.rename_columns(rows, spec.data.columns, split)
    if spec.data.holdout:
        _hold_out(loaded, recipe, wanted)
    return loaded


def _load_from_hub(recipe: Recipe, source: ModelSource, wanted: Sequence[str]) -> Loaded:
    spec, data = recipe.spec, recipe.spec.data
    repo = hub.Repo("dataset", str(data.path), data.revision)
    theirs, commit = hub_rows.load_splits(repo, data.name, streaming=data.streaming)
    names = splits.choose_splits(recipe, theirs, wanted)
    rows = {ours: theirs[name] for ours, name in names.items()}
    prints: dict[str, str] = {}
    if data.streaming:
        rows = {
            ours: found if ours == "train" else store_stream(_limit_rows(found, spec, ours))
            for ours, found in rows.items()
        }
        prints = {"train": _digest([repo.id, data.name, commit, names["train"]])} if "train" in names else {}
    return Loaded(rows, source, "hub", prints, commit=commit)


def _load_from_files(recipe: Recipe, source: ModelSource, wanted: Sequence[str]) -> Loaded:
    candidates = {name for ours in wanted for name in splits.list_candidates(recipe, ours)}
    given = fetch_remote_files(recipe.spec.data, candidates)
    data = given.model_copy(update={"files": find_split_folders(given.files)})
    names = splits.choose_splits(recipe, data.files, wanted)
    if "train" in wanted:
        _warn_of_splits_without_files(names, recipe)
    streamed = names.get("train") if data.streaming else None
    images = [data.columns.get(name, name) for name in IMAGE_COLUMNS if name in recipe.columns()]
    theirs = files.read_files(data, names.values(), streamed, images)
    prints: dict[str, str] = {}
    places: dict[str, Place] = {}
    for ours, name in names.items():
        paths = files.find_files(ours, data.files[name])
        if not data.maps and (format := files.find_format(data, paths, ours)) not in files.IMAGE_FORMATS:
            places[ours] = FilePlace(paths, format, data)
        if name == streamed:
            prints[ours] = _digest(digest_files(paths))
    return Loaded({ours: theirs[name] for ours, name in names.items()}, source, "files", prints, places=places)


def _warn_of_splits_without_files(names: dict[str, str], recipe: Recipe) -> None:
    for ours, theirs in recipe.splits().items():
        if ours not in names and not (recipe.spec.evaluate.splits or recipe.spec.data.holdout):
            warnings.warn(f"[data.files] names no {theirs!r}, so the split {ours!r} is not evaluated", stacklevel=2)


def _place_images(loaded: Loaded) -> None:
    """Let rows that are images be named by their files."""
    from datasets import Image

    for split, rows in loaded.splits.items():
        is_image = not _is_stream(rows) and isinstance(rows.features.get("image"), Image)
        if is_image and split not in loaded.places and loaded.origin == "files":
            loaded.places[split] = ImagePlace(rows)


def _hold_out(loaded: Loaded, recipe: Recipe, needed: Sequence[str]) -> None:
    spec, rows, places = recipe.spec, loaded.splits, loaded.places
    wanted = [split for split in evaluated_splits(recipe) if split in needed and split not in rows]
    if not wanted:
        warnings.warn("[data].holdout is not used: the data has every split that is evaluated", stacklevel=2)
    elif len(wanted) > 1 or spec.data.streaming:
        why = "rows of a stream can't be set aside" if spec.data.streaming else f"{', '.join(wanted)} are missing"
        raise DataError(f"[data].holdout makes one split out of stored rows, but {why}", split=wanted[0])
    else:
        chosen = splits.choose_held_out(len(rows["train"]), float(spec.data.holdout or 0), spec.seed)
        whole, place = rows["train"], places.get("train", Place())
        for split, numbers in zip(("train", wanted[0]), chosen, strict=True):
            rows[split], places[split] = whole.select(numbers), SelectedPlace(numbers, place)
        loaded.held_out = {wanted[0]: chosen[1].tolist()}


def _limit_rows(rows: Any, spec: Spec, split: str) -> Any:
    limit = spec.data.limit.get(split)
    if limit is None:
        return rows
    return rows.take(limit) if _is_stream(rows) else rows.select(range(min(limit, len(rows))))


def _check(loaded: Loaded, recipe: Recipe, *, learns: bool) -> None:
    """Let the recipe learn from the training rows if it is to be trained, and refuse rows that it can't use."""
    inspected, problems = _inspect(loaded, recipe), Problems()
    if learns:
        with loaded.locate_rows():
            learn_from_rows(recipe, inspected["train"])
    for split, rows in inspected.items():
        with problems.collect(), loaded.locate_rows():
            check_rows(recipe, rows, split)
    problems.raise_found()


def parts_of(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipes that a recipe is made of, if it is made of several."""
    return recipe.parts() if isinstance(recipe, HasParts) else {}


def _inspect(loaded: Loaded, recipe: Recipe) -> Splits:
    """Return the rows to check, which have all columns that the recipe needs. Of a stream, only the first rows."""
    looked_at = {split: _first_rows(rows) if _is_stream(rows) else rows for split, rows in loaded.splits.items()}
    problems = Problems()
    for split, rows in looked_at.items():
        with problems.collect():
            if not len(rows):
                raise DataError("there are no rows", split=split)
            columns.require_columns(rows.column_names, recipe.columns(), split)
    problems.raise_found()
    shared = [name for name in recipe.columns() if all(name in rows.column_names for rows in looked_at.values())]
    compared = "train" in looked_at and loaded.origin != "sample" and not parts_of(recipe)  # parts were compared alone
    if shared and compared:
        warn_of_overlap(looked_at, shared)
    return looked_at


def _first_rows(stream: Any) -> Dataset:
    from datasets import Dataset

    return fix_types(stream)[1] or Dataset.from_dict({})


def _is_stream(rows: Any) -> bool:
    from datasets import IterableDataset

    return isinstance(rows, IterableDataset)


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
