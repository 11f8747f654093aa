"""Optional parts of the contract, for the few recipes that need them. The loop asks for them by type.

A recipe inherits from one of these classes besides `Recipe`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taskrecipe.recipe import Direction, Recipe, Row, Splits

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset

    from taskrecipe.training.update import Update


class HasParts(ABC):
    """A recipe made of several recipes, each with rows of its own."""

    @abstractmethod
    def parts(self) -> dict[str, Recipe]:
        """Return the recipes. The spec of each names its rows."""

    @abstractmethod
    def join(self, parts: dict[str, Splits]) -> Splits:
        """Make one data set of the rows of all parts."""

    @abstractmethod
    def mark_part(self, name: str, rows: Dataset) -> Dataset:
        """Return rows of one part as rows of the whole recipe, so that they can be predicted."""


class EmbedsRows(ABC):
    """A recipe that turns rows into vectors, so that the nearest rows of another file can be found."""

    @abstractmethod
    def vectors(self, prediction: Row, row: Row) -> dict[str, np.ndarray[Any, Any]]:
        """Return the vector of each text that the row has, of length 1, by the name of its column."""


class CutsRows(ABC):
    """A recipe whose `preprocess` makes other rows than it gets: parts of long rows, or rows joined and cut again.

    Without this class, the first preprocessed row is made of the first row, the second of the second, and so on.
    """

    @abstractmethod
    def owners(self, rows: Dataset) -> Sequence[int] | None:
        """Return the number of the row that each preprocessed row is a part of, in order; None if rows were joined.

        Rows that are preprocessed for the split `PREDICT` are never joined, for each needs an answer. A row may have
        no part at all.
        """

    @abstractmethod
    def merge(self, predictions: list[Row], rows: list[Row]) -> tuple[Row, Row]:
        """Make one prediction and one row of all parts of a row, as `answer` and `judge` take them."""


class DrawsRows(ABC):
    """A recipe whose epochs are not simply each row once."""

    @abstractmethod
    def draw(self, rows: Dataset, random: np.random.Generator) -> Sequence[int] | None:
        """Return the rows of one epoch, always the same number of them; None for each row once."""


class SummarizesMetrics(ABC):
    """A recipe whose splits report different metrics, or that combines the metrics of several splits."""

    @abstractmethod
    def reported(self) -> dict[str, Direction]:
        """Return every metric of an evaluation by its reported name, and which way is better."""

    @abstractmethod
    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return further metrics made of those of all splits. They must be among `reported`."""


class WeighsTerms(ABC):
    """A recipe whose loss terms count differently in each update."""

    @abstractmethod
    def term_weights(self, counts: dict[str, float]) -> dict[str, float]:
        """Return the weight of each loss term, given the `loss_counts` of the whole update over all processes.

        `loss_counts` may count more than terms: what has no term only enters here.
        """


class ComputesUpdate(ABC):
    """A recipe whose rows depend on one another within an update, so that micro-batches can't be summed."""

    @property
    def whole_update(self) -> bool:
        """Whether this spec needs it; if not, micro-batches are summed as for any recipe."""
        return True

    @abstractmethod
    def backward(self, model: torch.nn.Module, update: Update) -> None:
        """Compute the gradients of the whole update, and set the mean of each term in `update.terms`.

        Run the model by `update.forward(batch)`: then dropout follows the rows.
        """
