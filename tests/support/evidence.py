"""Synthetic runs with evidence, as `predictions/<split>.parquet` has it, without training anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RESAMPLES = 1000
Metric = Callable[[np.ndarray], Any]
"""A metric of the rows at the given places, or of many draws of rows at once, one a line."""


def resample(rows: int, number: int) -> np.ndarray:
    """The places of rows that a resample draws."""
    return np.random.default_rng([0x626F6F74, rows, number]).integers(0, rows, rows)


def write_run(folder: Path, spec: str = "", results: Mapping[str, Any] | None = None, **files: Any) -> Path:
    """A finished run's small files; `files` replaces or adds some, by name without its ending."""
    folder.mkdir(parents=True)
    best = {"metric": "f1", "value": 0.5, "step": 9, "metrics": {"f1": 0.5, "loss": 0.7}}
    whole = {
        "run": {"format": 1, "id": folder.name, "created": "2026-01-01T00:00:00+00:00"},
        "results": {"status": "finished", "recipe": "glue", "data": "files", "updates": 9, "best": best}
        | dict(results or {}),
        "environment": {"python": "3.11.7", "packages": {"torch": "2.13.0"}, "processes": 1, "data": {}},
    } | files
    for name, content in whole.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "spec.toml").write_text(spec or SPEC)
    end = {"event": "end", "step": 9, "status": "finished", "reason": "all updates taken"}
    start = {"event": "start", "step": 0, "updates": 9, "best_metric": "f1"}
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (start, end)))
    return folder


SPEC = """\
spec_version = 1 # ../spec.toml:1
recipe = "glue" # ../spec.toml:2
seed = 42 # default
[task]
name = "mrpc" # ../spec.toml:4
[data.files]
train = "/data/train.csv" # ../spec.toml:6
[train]
epochs = 3 # ../spec.toml:8
learning_rate = 5e-05 # ../spec.toml:9
"""


def write_evidence(
    run: Path,
    columns: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    *,
    split: str = "validation",
    data: str = "same rows",
    labels: Sequence[str] = (),
    directions: Mapping[str, str] | None = None,
    rows: int | None = None,
) -> None:
    """Evidence with these columns beside those that every split has, and each metric on every resample."""
    count = len(next(iter(columns.values())))
    table = {
        "row": pa.array(range(count), pa.int64()),
        "source": pa.array([None] * count, pa.string()),
        "input": [json.dumps({"sentence": f"sentence {number}"}) for number in range(count)],
        "prediction": ["null"] * count,
        "reference": pa.array([None] * count, pa.string()),
        **columns,
    }
    whole = np.arange(count)
    about = {
        "format": 1,
        "run": run.name,
        "split": split,
        "step": 9,
        "recipe": "glue",
        "labels": list(labels),
        "metrics": {name: float(metric(whole)) for name, metric in metrics.items()},
        "directions": {name: "min" if name in ("loss", "mse") else "max" for name in metrics} | dict(directions or {}),
        "rows": rows or count,
        "kept": count,
        "data": data,
    }
    folder = run / "predictions"
    folder.mkdir(exist_ok=True)
    stem = split.replace("/", "-")
    found = pa.table(table).replace_schema_metadata({"taskrecipe": json.dumps(about)})
    pq.write_table(found, folder / f"{stem}.parquet")
    draws = np.stack([resample(count, number) for number in range(RESAMPLES)])
    columns = {name: np.asarray(metric(draws), dtype=float) for name, metric in metrics.items()}
    if columns:
        pq.write_table(pa.table(columns), folder / f"{stem}.bootstrap.parquet")


def write_classifier(run: Path, actual: np.ndarray, predicted: np.ndarray, **about: Any) -> None:
    """Evidence of a classifier of two classes, with its f1 of the class "yes", its accuracy and its loss."""
    names = ["no", "yes"]
    loss = np.where(actual == predicted, 0.1, 2.0) + 0.01 * np.arange(len(actual)) / len(actual)
    correct = actual == predicted
    columns = {
        "reference": [json.dumps({"label": names[one]}) for one in actual],
        "prediction": [json.dumps({"label": names[one], "probabilities": {}}) for one in predicted],
        "correct": correct,
        "loss": loss,
        "score.accuracy": correct.astype(float),
    }
    metrics: dict[str, Metric] = {
        "f1": lambda rows: 2 * (actual & predicted)[rows].sum(-1) / (actual + predicted)[rows].sum(-1).clip(1),
        "accuracy": lambda rows: correct[rows].mean(-1),
        "loss": lambda rows: loss[rows].mean(-1),
    }
    write_evidence(run, columns, metrics, labels=names, **about)
