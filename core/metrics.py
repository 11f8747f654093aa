"""Metrics that many recipes share, as `evaluate` modules that are defined here and never downloaded.

Recipes import this module inside `score`, since `evaluate` is slow to import.
"""

from __future__ import annotations

import math
from typing import Any

import evaluate
import numpy as np
from datasets import Features, Value


class _Metric(evaluate.Metric):  # type: ignore[misc]
    """A metric of one prediction and one reference per row, kept in memory."""

    value = "int64"

    def __init__(self, **options: Any) -> None:
        self.options = options
        super().__init__(keep_in_memory=True, experiment_id="taskrecipe")

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="",
            inputs_description="one prediction and one reference per row",
            features=Features({"predictions": Value(self.value), "references": Value(self.value)}),
        )


def score_confusion(confusion: np.ndarray[Any, Any], positive: int) -> dict[str, float]:
    """Return what `Classification` reports, from how often each class (rows of the table) was predicted as each."""
    right, there, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    either = there + predicted
    f1 = np.divide(2.0 * right, either, out=np.zeros(len(right)), where=either > 0)
    total = float(confusion.sum())
    covariance = right.sum() * total - float(there @ predicted)
    spread = (total**2 - float(there @ there)) * (total**2 - float(predicted @ predicted))
    return {
        "accuracy": float(right.sum() / total) if total else math.nan,
        "f1": float(f1[positive]),
        "macro_f1": float(f1.mean()),
        "matthews_correlation": float(covariance / math.sqrt(spread)) if spread else 0.0,
    }


def score_regression(predictions: Any, references: Any) -> dict[str, float]:
    """Return what `Regression` reports."""
    from scipy.stats import pearsonr, spearmanr

    predictions, references = np.asarray(predictions), np.asarray(references)
    # A correlation with a constant is undefined: NaN, without a warning.
    varies = len(predictions) > 1 and np.ptp(predictions) > 0 and np.ptp(references) > 0
    return {
        "pearson": float(pearsonr(predictions, references).statistic) if varies else math.nan,
        "spearman": float(spearmanr(predictions, references).statistic) if varies else math.nan,
        "mse": float(np.mean((predictions - references) ** 2)),
    }


class Classification(_Metric):
    """Accuracy, F1 of the class `positive`, the mean F1 over classes, and Matthews' correlation."""

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        classes = list(range(self.options["classes"]))
        f1 = f1_score(references, predictions, labels=classes, average=None, zero_division=0.0)
        return {
            "accuracy": accuracy_score(references, predictions),
            "f1": f1[self.options["positive"]],
            "macro_f1": float(np.mean(f1)),
            "matthews_correlation": matthews_corrcoef(references, predictions),
        }


class Regression(_Metric):
    """Pearson's and Spearman's correlation, and the mean squared error."""

    value = "float64"

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return score_regression(predictions, references)
