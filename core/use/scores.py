"""Scores of rows: the defaults of a recipe with one class a row, and a scorer for any choice of rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from taskrecipe.optional import CutsRows
from taskrecipe.recipe import Judgment, Predictions, Recipe, Row, Scorer

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset


def score_classes(recipe: Recipe, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
    """Return whether each row's `label` is right, as `accuracy`; nothing if rows don't have one class each."""
    import numpy as np

    if "accuracy" not in recipe.metrics() or not (recipe.labels and "label" in predictions):
        return {}
    if "labels" not in rows.column_names or np.ndim(rows[0]["labels"]):
        return {}
    return {"accuracy": np.equal(predictions["label"], rows["labels"]).astype(float).tolist()}


def judge_class(recipe: Recipe, prediction: Row, row: Row) -> Judgment:
    """Compare the class `label` with the row's; nothing is known if the row doesn't have one class."""
    import numpy as np

    right = row.get("labels")
    if right is None or np.ndim(right) or "label" not in prediction or not recipe.labels:
        return Judgment()
    chosen, probabilities = int(prediction["label"]), prediction.get("probabilities")
    confidence = None if probabilities is None else float(np.max(probabilities))
    return Judgment({"label": recipe.labels[int(right)]}, confidence, chosen == int(right))


def make_scorer(recipe: Recipe, predictions: Predictions, rows: Dataset) -> Scorer:
    """Return a scorer that takes means where it can, and calls the recipe's `score` on the chosen rows for the rest.

    A recipe that cuts rows is scored by means alone: `score` could not tell two copies of a row from its parts.
    """
    means = {name: as_numbers(values) for name, values in recipe.row_scores(predictions, rows).items()}
    rest = recipe.metrics().keys() - means.keys() - {"loss"}
    if not rest or (isinstance(recipe, CutsRows) and recipe.owners(rows) is not None):
        return lambda chosen: take_means(means, chosen)

    def score(chosen: np.ndarray[Any, Any]) -> dict[str, float]:
        found = recipe.score(take_predictions(predictions, chosen), rows.select(chosen))
        return {**found, **take_means(means, chosen)}

    return score


def find_owners(recipe: Recipe, rows: Dataset) -> Sequence[int] | None:
    """Return the number of the row that each preprocessed row is made of; None if that is not known."""
    return recipe.owners(rows) if isinstance(recipe, CutsRows) and len(rows) else range(len(rows))


def merge_parts(recipe: Recipe, predictions: list[Row], rows: list[Row]) -> tuple[Row, Row]:
    """Return the prediction and the preprocessed row of a row, out of those of its parts."""
    return recipe.merge(predictions, rows) if isinstance(recipe, CutsRows) else (predictions[0], rows[0])


def count_units(recipe: Recipe, rows: Dataset) -> int:
    """Return how many rows are judged: parts of one row count once."""
    owners = find_owners(recipe, rows)
    return len(rows) if owners is None else len(set(owners))


def merge_rows(
    recipe: Recipe, predictions: Predictions, rows: Dataset, chosen: Collection[int] | None = None
) -> Iterator[tuple[Row, Row]]:
    """Yield the prediction and the preprocessed row of each row that is judged, or only of the `chosen` ones."""
    owners = find_owners(recipe, rows)
    numbers = range(len(rows)) if owners is None else owners
    for unit, (_, parts) in enumerate(groupby(range(len(rows)), key=lambda part: numbers[part])):
        if chosen is not None and unit not in chosen:
            continue
        members = list(parts)
        found = [{name: values[part] for name, values in predictions.items()} for part in members]
        made = [rows[part] for part in members]
        yield (found[0], made[0]) if owners is None else merge_parts(recipe, found, made)


def take_means(values: Mapping[str, np.ndarray[Any, Any]], chosen: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return the mean of each column over the chosen rows. Rows whose value is NaN don't count."""
    return {name: mean_of_counted(column[chosen]) for name, column in values.items()}


def mean_of_counted(values: np.ndarray[Any, Any]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    import numpy as np

    counted = values[~np.isnan(values)]
    return float(counted.mean()) if counted.size else math.nan


def as_numbers(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """Return values as an array of doubles."""
    import numpy as np

    return np.asarray(values, dtype=np.float64)


def take_predictions(predictions: Predictions, chosen: np.ndarray[Any, Any]) -> Predictions:
    """Return the predictions of the chosen rows."""
    import numpy as np

    return {
        name: values[chosen] if isinstance(values, np.ndarray) else [values[number] for number in chosen]
        for name, values in predictions.items()
    }
