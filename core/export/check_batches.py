"""A few rows of what a run was evaluated on, as batches without targets: what an export is checked with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from taskrecipe.data.load import load_data
from taskrecipe.errors import DataError
from taskrecipe.recipe import (
    Batch,
    Recipe,
    Splits,
    evaluated_splits,
    learned_values,
    restore_learned,
    target_columns,
)
from taskrecipe.system.python_warnings import collect_warnings

if TYPE_CHECKING:
    from datasets import Dataset

MOST_ROWS = 16
"""Rows of each evaluated split that an export is checked with."""


@dataclass(frozen=True)
class CheckRows:
    """The first preprocessed rows of an evaluated split, without targets."""

    recipe: Recipe
    split: str
    rows: Dataset

    @cached_property
    def batch(self) -> Batch:
        """All rows as one batch, as an evaluation makes it."""
        return self._make_batch(range(len(self.rows)))

    @cached_property
    def first(self) -> Batch:
        """The first row alone: a batch of another size and, for text, usually of another length."""
        return self._make_batch(range(1))

    def _make_batch(self, numbers: range) -> Batch:
        from taskrecipe.training.batches import BatchMaker, Request

        return BatchMaker(self.recipe, self.rows, training=False)[Request(tuple(numbers))].inputs


def load_check_rows(recipe: Recipe, model: Path) -> list[CheckRows]:
    """Load the first rows of each evaluated split of the run that trained `recipe`; `model` is its exported model."""
    with collect_warnings():  # the run has reported them
        try:
            splits = _load_first_rows(recipe, model)
        except DataError as error:
            raise DataError(f"an export is checked with rows that the run was evaluated on, and {error}") from error
        return [
            CheckRows(recipe, split, _preprocess(recipe, split, splits[split])) for split in _checked(recipe, splits)
        ]


def _load_first_rows(recipe: Recipe, model: Path) -> Splits:
    """Load rows as training did. Nothing is learned from them, and no model but the trained one is read."""
    spec, limit = recipe.spec, dict(recipe.spec.data.limit)
    for split in ("train", *evaluated_splits(recipe)):
        limit[split] = min(limit.get(split, MOST_ROWS), MOST_ROWS)
    small = spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"limit": limit}),
            "model": type(spec.model)(name=str(model)),
            "techniques": [],
        }
    )
    again = type(recipe)(small)
    restore_learned(again, learned_values(recipe))
    again.learn = _learn_nothing  # type: ignore[method-assign]
    with TemporaryDirectory() as folder:
        return load_data(small, again, Path(folder) / "sample").splits


def _learn_nothing(rows: Any) -> None:
    """Keep what was learned in training."""


def _checked(recipe: Recipe, splits: Splits) -> list[str]:
    return [split for split in evaluated_splits(recipe) if split in splits]


def _preprocess(recipe: Recipe, split: str, rows: Dataset) -> Dataset:
    targets = [name for name in target_columns(recipe) if name in rows.column_names]
    made = recipe.preprocess(rows.remove_columns(targets), split)
    return made.select(range(min(len(made), MOST_ROWS)))
