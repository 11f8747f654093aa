"""Evidence files: for each row of an evaluation what was right, what was predicted, and how wrong that was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["classes", "values", "objects", "maps", "other"]

INTERVAL = (2.5, 97.5)
"""Percentiles of the bootstrap that bound a metric's interval."""


@dataclass(frozen=True)
class Evidence:
    """One split's rows, in row order. A column that the recipe can't fill holds None or NaN."""

    split: str
    about: dict[str, Any]
    """What the file says about itself: step, labels, metrics, directions, counts of rows."""
    rows: list[int]
    sources: list[str | None]
    inputs: list[dict[str, Any]]
    references: list[Any]
    predictions: list[Any]
    confidence: Floats
    loss: Floats
    correct: Floats
    """1, 0, or NaN where nothing says which."""
    scores: dict[str, Floats]
    thumbnails: list[bytes | None] = field(repr=False)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % interval of each metric over resampled rows."""

    @property
    def labels(self) -> list[str]:
        """The names of the classes that the run knows."""
        return [str(label) for label in self.about.get("labels") or []]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the whole split."""
        return {name: value for name, value in (self.about.get("metrics") or {}).items() if value is not None}

    @cached_property
    def kind(self) -> Kind:
        """What is predicted, as far as references and predictions show it."""
        for reference, prediction in zip(self.references, self.predictions, strict=True):
            if found := _kind_of(prediction, reference):
                return found
        return "other"

    @cached_property
    def worst(self) -> list[int]:
        """Positions of all rows, the worst first."""
        return sorted(range(len(self.rows)), key=self._badness, reverse=True)

    def _badness(self, place: int) -> tuple[float, float]:
        """Return how bad a row is: by its loss, else by being wrong and how sure the model was, else by its scores."""
        if not np.isnan(self.loss[place]):
            return 1.0, float(self.loss[place])
        if not np.isnan(self.correct[place]):
            wrong, sure = 1.0 - self.correct[place], np.nan_to_num(self.confidence[place])
            return 0.0, float(wrong + sure if wrong else -sure)
        directions = self.about.get("directions") or {}
        for name, values in self.scores.items():
            if not np.isnan(values[place]):
                return 0.0, float(values[place] if directions.get(name) == "min" else -values[place])
        return -1.0, 0.0


def read_evidence(folder: Path) -> tuple[list[Evidence], list[str]]:
    """Read the evidence of every split, and return what could not be read as messages."""
    found, problems = [], []
    for path in sorted(folder.glob("*.parquet")):
        if path.name.endswith(".bootstrap.parquet"):
            continue
        try:
            found.append(_read_split(path))
        except Exception as error:  # whatever a damaged file makes pyarrow raise
            problems.append(f"predictions/{path.name} can't be read: {str(error).splitlines()[0][:200]}")
    return sorted(found, key=lambda one: (one.split != "validation", one.split)), problems


def _read_split(path: Path) -> Evidence:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    about = json.loads((table.schema.metadata or {}).get(b"taskrecipe", b"{}"))
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    count, missing = table.num_rows, [None] * table.num_rows
    scores = {name.removeprefix("score."): values for name, values in columns.items() if name.startswith("score.")}
    return Evidence(
        split=str(about.get("split") or path.stem),
        about=about,
        rows=columns.get("row", list(range(count))),
        sources=columns.get("source", missing),
        inputs=[value if isinstance(value, dict) else {} for value in _parse(columns.get("input", missing))],
        references=_parse(columns.get("reference", missing)),
        predictions=_parse(columns.get("prediction", missing)),
        confidence=_floats(columns.get("confidence", missing)),
        loss=_floats(columns.get("loss", missing)),
        correct=_floats(columns.get("correct", missing)),
        scores={name: _floats(values) for name, values in scores.items()},
        thumbnails=columns.get("thumbnail", missing),
        intervals=_read_intervals(path.with_name(f"{path.stem}.bootstrap.parquet")),
    )


def _read_intervals(path: Path) -> dict[str, tuple[float, float]]:
    import pyarrow.parquet as pq

    if not path.exists():
        return {}
    table = pq.read_table(path)
    found = {}
    for name in table.column_names:
        values = _floats(table.column(name).to_pylist())
        values = values[np.isfinite(values)]
        if values.size:
            low, high = np.percentile(values, INTERVAL)
            found[name] = (float(low), float(high))
    return found


def _floats(values: Iterable[Any]) -> Floats:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def _parse(texts: Sequence[str | None]) -> list[Any]:
    return [None if text is None else json.loads(text) for text in texts]


def label_of(answer: Any) -> str | None:
    """Return the class that an answer names; None if it names none."""
    if isinstance(answer, dict):
        for key in ("label", "ending"):
            if isinstance(answer.get(key), str | int) and not isinstance(answer[key], bool):
                return str(answer[key])
    return answer if isinstance(answer, str) else None


def value_of(answer: Any) -> float | None:
    """Return the number that an answer is; None if it is none."""
    value = (
        next((answer[key] for key in ("value", "cosine", "score") if key in answer), None)
        if _is_dict(answer)
        else answer
    )
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_dict(answer: Any) -> bool:
    return isinstance(answer, dict)


def _kind_of(prediction: Any, reference: Any) -> Kind | None:
    answers = [answer for answer in (prediction, reference) if answer not in (None, [], {})]
    if not answers:
        return None
    first = answers[0]
    if isinstance(first, list) and _is_dict(first[0]) and first[0].keys() & {"box", "mask"}:
        return "objects"
    if _is_dict(first) and isinstance(first.get("masks"), dict):
        return "maps"
    if reference is not None and label_of(prediction) is not None and label_of(reference) is not None:
        return "classes" if _is_dict(prediction) else None
    if reference is not None and value_of(prediction) is not None and value_of(reference) is not None:
        return "values"
    return "other" if reference is not None else None
