"""What a preview is made of: the recipe with its processor, and the rows before and after preprocessing."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, IterableDataset

from taskrecipe import hub
from taskrecipe.data.cache import preprocess_splits
from taskrecipe.data.load import Loaded
from taskrecipe.data.streams import read_blocks
from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe, Row, Splits
from taskrecipe.run.folder_names import SPEC
from taskrecipe.run.prepare import prepare_rows
from taskrecipe.run.sample_fallback import reason_for_sample
from taskrecipe.spec.resolve import Resolved, resolve
from taskrecipe.system.python_warnings import collect_warnings
from taskrecipe.training.batches import RowStore
from taskrecipe.training.streaming import BLOCK_ROWS, MAX_BLOCK

LOCATED_ROWS = 100_000
"""In larger splits, the record of a row is not looked for: the file would be read again for each."""

NO_LIMIT = 1_000_000
"""The length that nothing is cut off at; the highest that recipes allow."""


@dataclass
class Material:
    """The rows of a spec, ready to be looked at."""

    resolved: Resolved
    recipe: Recipe
    loaded: Loaded
    raw: Splits
    """The rows as they were read. Of a stream, the first block."""
    rows: Splits
    """The same, preprocessed."""
    uncut: Splits
    """The rows, preprocessed without a limit on their length; empty if the recipe cuts nothing off."""
    uncut_recipe: Recipe | None = None
    stream: IterableDataset | None = None
    warnings: list[str] = field(default_factory=list)
    sample_reason: str | None = None

    def store(self, split: str) -> RowStore:
        """Return what the preprocessed rows of a split can be taken from by number."""
        return (
            StreamRows(self.recipe, self.stream) if self.stream is not None and split == "train" else self.rows[split]
        )

    def find_source(self, split: str, row: int) -> str | None:
        """Return the file and the record that a row was made of, where one row is made of one record."""
        place = self.loaded.places.get(split)
        if place is None or self.stream is not None or len(self.raw[split]) != len(self.rows[split]):
            return None
        if len(self.rows[split]) > LOCATED_ROWS:
            return None
        # Files are named as the spec names them, and the row's own number need not be said again.
        named = place(row).replace(f"{self.resolved.path.absolute().parent}/", "")
        return named.removeprefix(f"row {row} (").removesuffix(")") if named.startswith(f"row {row} (") else named


def resolve_target(target: Path, sets: Sequence[str], sample: bool) -> Resolved:
    """Read and validate a spec, or the spec of a run whose folder is given."""
    if not target.is_dir():
        return resolve(target, sets, sample)
    if not (target / SPEC).exists():
        raise UsageError(f"{target} has no {SPEC}: it is not a run's folder. Name a spec or a run")
    return resolve(target / SPEC, sets, sample)


def load_material(target: Path, sets: Sequence[str], sample: bool) -> Material:
    """Load, check and preprocess all rows that a spec names. The model's weights are neither fetched nor read."""
    hub.forget_outage()
    resolved = resolve_target(target, sets, sample)
    reason = reason_for_sample(resolved.spec)
    if reason and not resolved.spec.data.sample:
        resolved = resolve_target(target, sets, True)
    recipe = installed().recipe(resolved.spec.recipe)(resolved.spec)
    with collect_warnings() as messages, tempfile.TemporaryDirectory(prefix="taskrecipe-") as scratch:
        loaded, rows = prepare_rows(recipe, Path(scratch) / "sample", weights=False)
        stream = rows["train"] if isinstance(rows["train"], IterableDataset) else None
        raw = {**loaded.splits, "train": _first_block(stream)} if stream is not None else loaded.splits
        if stream is not None:
            rows = {**rows, "train": recipe.preprocess(raw["train"], "train")}
        with collect_warnings():  # what is said of rows that are cut was said already
            uncut_recipe = _without_limits(recipe)
            uncut = preprocess_splits(uncut_recipe, raw, loaded.source) if uncut_recipe else {}
    return Material(
        resolved,
        recipe,
        loaded,
        raw,
        rows,
        uncut,
        uncut_recipe,
        stream,
        [*loaded.warnings, *messages],
        reason,
    )


def _without_limits(recipe: Recipe) -> Recipe | None:
    """Return a copy of the recipe that cuts nothing off; None if it cuts nothing off anyway."""
    if not recipe.length_options:
        return None
    unlimited = copy.copy(recipe)
    unlimited.options = recipe.options.model_copy(update=dict.fromkeys(recipe.length_options, NO_LIMIT))
    return unlimited


def _first_block(stream: IterableDataset) -> Dataset:
    with closing(read_blocks(stream, BLOCK_ROWS)) as blocks:
        return next(blocks)


@dataclass
class StreamRows:
    """The preprocessed rows of a stream by number. Blocks are read when they are asked for."""

    recipe: Recipe
    stream: IterableDataset
    held: dict[int, Dataset] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.held.values()))

    def __getitems__(self, keys: list[int]) -> list[Row]:
        return [self._find_block(key // MAX_BLOCK, key)[key % MAX_BLOCK] for key in keys]

    def _find_block(self, number: int, row: int) -> Dataset:
        if number not in self.held:
            with closing(read_blocks(self.stream, BLOCK_ROWS, number)) as blocks:
                found = next(blocks, None)
            self.held[number] = found and self.recipe.preprocess(found, "train")
        block = self.held[number]
        if block is None or row % MAX_BLOCK >= len(block):
            raise UsageError(f"the stream has no row {row}")
        return block
