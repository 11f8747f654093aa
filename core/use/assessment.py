"""An evaluated split and what follows from it: the intervals of its metrics, and the metrics of some of its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.recipe import Recipe, Scorer, reported_name
from taskrecipe.use.bootstrap import find_intervals, resample_metrics, score_loss
from taskrecipe.use.scores import as_numbers, count_units, find_owners

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.training.evaluation import Outcome

Numbers = np.ndarray[Any, Any]

LOSS_TOLERANCE = 1e-3
"""Models may add further terms to their loss: if those of the rows don't make it up, it has no interval."""


@dataclass(frozen=True)
class Assessment:
    """What was found about a split. Parts of one row count as that row; its numbers count from 0."""

    recipe: Recipe
    rows: Dataset
    """The preprocessed rows."""
    outcome: Outcome

    @property
    def split(self) -> str:
        """The split's name."""
        return self.outcome.split

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics by their own names, without that of the split."""
        prefix = reported_name(self.split, "")
        return {name.removeprefix(prefix): value for name, value in self.outcome.metrics.items()}

    @cached_property
    def size(self) -> int:
        """The number of rows."""
        return count_units(self.recipe, self.rows)

    @cached_property
    def is_aligned(self) -> bool:
        """Whether it is known which row of the data each row is made of."""
        return find_owners(self.recipe, self.rows) is not None

    @cached_property
    def losses(self) -> tuple[Numbers, Numbers] | None:
        """The sum of each row's loss and the number of items in it; None if they are not known."""
        found = self.outcome.row_losses
        owners = find_owners(self.recipe, self.rows)
        if found is None or owners is None or len(owners) == self.size:
            return found
        numbers = np.unique(np.asarray(owners), return_inverse=True)[1]
        return np.bincount(numbers, found.sums), np.bincount(numbers, found.counts)

    @cached_property
    def row_losses(self) -> Numbers:
        """The mean loss of each row; NaN if it is not known."""
        if self.losses is None:
            return np.full(self.size, math.nan)
        sums, counts = self.losses
        means: Numbers = np.divide(sums, counts, out=np.full(self.size, math.nan), where=counts > 0)
        return means

    @cached_property
    def row_scores(self) -> dict[str, Numbers]:
        """Each row's value of the metrics that are means of such values."""
        found = self.recipe.row_scores(self.outcome.predictions, self.rows)
        return {name: as_numbers(values) for name, values in found.items()}

    @cached_property
    def scorer(self) -> Scorer:
        """What computes the metrics of chosen rows, the loss too if it is the sum of theirs."""
        score = self.recipe.scorer(self.outcome.predictions, self.rows)
        if self.losses is None:
            return score
        measure_loss = score_loss(*self.losses)
        whole, logged = measure_loss(np.arange(self.size))["loss"], self.metrics["loss"]
        if not math.isclose(whole, logged, rel_tol=LOSS_TOLERANCE):
            return score
        return lambda chosen: {**measure_loss(chosen), **score(chosen)}

    @cached_property
    def resampled(self) -> dict[str, Numbers]:
        """The values of each metric on the resamples of the rows."""
        return resample_metrics(self.scorer, self.size, self.recipe.resamples)

    @property
    def resample_count(self) -> int:
        """How many resamples there are."""
        return len(next(iter(self.resampled.values()), ()))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each metric, by its reported name."""
        found = find_intervals({name: self.resampled[name] for name in self.metrics if name in self.resampled})
        return {reported_name(self.split, name): interval for name, interval in found.items()}

    def score_rows(self, chosen: Numbers) -> dict[str, float]:
        """Return the metrics of chosen rows by their reported names."""
        scored = self.scorer(chosen)
        return {reported_name(self.split, name): scored[name] for name in self.metrics if name in scored}
