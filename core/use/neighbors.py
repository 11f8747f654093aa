"""The nearest rows of another file, for recipes that turn texts into vectors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.errors import UsageError
from taskrecipe.optional import EmbedsRows
from taskrecipe.plugins.registry import installed
from taskrecipe.run.folder import RunFolder
from taskrecipe.use.records import Input
from taskrecipe.use.trained import load_spec

if TYPE_CHECKING:
    from taskrecipe.use.predict import Plan
    from taskrecipe.use.predictor import Outcome
    from taskrecipe.use.workers import Window

NEAREST = 10
"""Rows that are part of an answer."""


def predict_with_neighbors(
    plan: Plan, windows: Iterator[Window], others: Input
) -> Iterator[tuple[Window, list[Outcome]]]:
    """Predict the rows of another file first, then the windows, with the nearest of those rows in each answer."""
    from dataclasses import replace

    from taskrecipe.use.predict import number_windows, raise_problems
    from taskrecipe.use.workers import predict_windows

    spec = load_spec(RunFolder.open(plan.run))
    if not issubclass(installed().recipe(spec.recipe), EmbedsRows):
        raise UsageError(f"--nearest needs a run that embeds texts, as two_tower does; this one is {spec.recipe!r}")
    index = Index()
    indexed = (replace(window, number=-1) for window in number_windows(others.windows()))
    for window, outcomes in predict_windows(plan, chain(indexed, windows), images=False):
        if window.number < 0:
            raise_problems(window.records, outcomes)
            index.add(window, outcomes)
        else:
            index.find_nearest(outcomes)
            yield window, outcomes


class Index:
    """The vectors of rows, compared by their cosine."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.parts: list[np.ndarray[Any, Any]] = []

    def add(self, window: Window, outcomes: list[Outcome]) -> None:
        """Add the rows of a window: the last text of each."""
        vectors = []
        for number, (record, outcome) in enumerate(zip(window.records, outcomes, strict=True), window.first):
            *_, (column, vector) = outcome.vectors.items()
            vectors.append(vector)
            self.rows.append({"row": number, "text": record.values.get(column)})
        self.parts = [np.concatenate([*self.parts, np.asarray(vectors, dtype=np.float32)])]

    def find_nearest(self, outcomes: list[Outcome]) -> None:
        """Add to each answer the rows that are nearest to its first text."""
        good = [outcome for outcome in outcomes if outcome.problem is None]
        if not good or not self.rows:
            return
        queries = np.asarray([next(iter(outcome.vectors.values())) for outcome in good], dtype=np.float32)
        cosines = queries @ self.parts[0].T
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST]
        for outcome, row, places in zip(good, cosines, order.tolist(), strict=True):
            outcome.answer["nearest"] = [{**self.rows[place], "cosine": float(row[place])} for place in places]
