"""Folders of runs for reports to read: written by hand, without training, small and always the same."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SPEC = """\
spec_version = 1 # specs/tickets.toml:1
recipe = "glue" # specs/tickets.toml:2
seed = {seed} # --set

[task]
name = "custom" # specs/tickets.toml:5

[model]
name = "bert-base-cased" # specs/tickets.toml:8

[data.files]
train = "tickets # old.csv" # specs/tickets.toml:11

[train]
learning_rate = {rate} # specs/_base.toml:4
clip_norm = 1.0 # default

[[techniques]]
name = "freeze" # specs/tickets.toml:15
"""
LABELS = ["billing", "delivery", "refund", "other"]
STARTED = 1_780_000_000.0


def write_run(folder: Path, *, seed: int = 1, rate: float = 5e-5, updates: int = 120, finished: bool = True) -> Path:
    """Write a run's folder: a loss that falls, four evaluations, one warning. Without evidence."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"format": 1, "id": f"{seed:016x}"}))
    (folder / "spec.toml").write_text(SPEC.format(seed=seed, rate=rate))
    (folder / "environment.json").write_text(
        json.dumps(
            {
                "started": "2026-01-02T03:04:05+00:00",
                "user": "ada",
                "command": ["/usr/bin/recipe", "run", "specs/tickets.toml"],
                "python": "3.11.7",
                "packages": {"torch": "2.13.0"},
                "git": {"commit": "c0ffee", "branch": "main", "dirty": True},
                "machine": {"host": "box", "cores": 8, "memory_bytes": 2**34, "accelerators": [{"name": "A100"}]},
                "processes": 1,
                "data": {"train": "ab" * 32},
            }
        )
    )
    records = list(make_log(seed, updates, finished))
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        (folder / "results.json").write_text(json.dumps(make_results(records, updates)))
    return folder


def make_log(seed: int = 1, updates: int = 120, finished: bool = True) -> list[dict[str, Any]]:
    """The records of a log."""
    random, clock = np.random.default_rng(seed), STARTED
    records: list[dict[str, Any]] = [
        {"event": "about", "step": 0, "facts": {"device": "A100, bf16"}},
        {"event": "warning", "step": 0, "message": "3 rows are in train and validation <b>too</b>"},
        {"event": "start", "step": 0, "updates": updates, "updates_per_epoch": updates // 4, "best_metric": "f1"},
    ]
    for step in range(1, updates + 1):
        loss = 1.5 * math.exp(-step / 40) + 0.2 + 0.05 * random.normal()
        records.append(
            {
                "event": "update",
                "step": step,
                "epoch": (step - 1) * 4 // updates,
                "learning_rate": 5e-5 * (1 - step / updates),
                "loss": loss,
                "terms": {"class": loss * 0.7, "box": loss * 0.3},
                "grad_norm": 1 + abs(random.normal()),
                "rows_per_second": 100 + 5 * random.normal(),
                "memory_mb": 900.0 + step,
            }
        )
        if step % (updates // 4) == 0:
            value = 0.9 - 0.6 * math.exp(-step / 30) - 0.02 * (step == updates)
            metrics = {"f1": value, "accuracy": value + 0.05, "loss": loss + 0.1}
            records.append(
                {
                    "event": "evaluate",
                    "step": step,
                    "epoch": 0,
                    "metrics": metrics,
                    "best": step != updates,
                    "seconds": 1.0,
                }
            )
            records.append(
                {"event": "save", "step": step, "checkpoint": f"step-{step}", "bytes": 2**20, "seconds": 0.1}
            )
    if finished:
        records.append({"event": "end", "step": updates, "status": "finished", "reason": "all updates taken"})
    for record in records:
        record["time"] = clock = clock + 0.5
    return records


def make_results(records: list[dict[str, Any]], updates: int) -> dict[str, Any]:
    best = [record for record in records if record["event"] == "evaluate" and record["best"]][-1]
    return {
        "status": "finished",
        "recipe": "glue",
        "updates": updates,
        "best": {"metric": "f1", "value": best["metrics"]["f1"], "step": best["step"], "metrics": best["metrics"]},
        "parameters": 108_310_272,
        "rows": {"train": 4000, "validation": 400},
        "device": "cuda:0",
        "timings": {"loading": 5.0, "training": 50.0, "evaluation": 8.0, "saving": 0.4},
    }


# Evidence -------------------------------------------------------------------------------------------


def write_evidence(folder: Path, rows: list[dict[str, Any]], **about: Any) -> Path:
    """Write the evidence of a split: one dict a row, whose input, reference and prediction are JSON values."""
    (folder / "predictions").mkdir(exist_ok=True)
    split = about.setdefault("split", "validation")
    columns = {
        "row": pa.array([row.get("row", number) for number, row in enumerate(rows)], pa.int64()),
        "source": pa.array([row.get("source") for row in rows], pa.string()),
        "input": pa.array([json.dumps(row.get("input", {})) for row in rows], pa.string()),
        "thumbnail": pa.array([row.get("thumbnail") for row in rows], pa.binary()),
        "reference": pa.array([json.dumps(row["reference"]) for row in rows], pa.string()),
        "prediction": pa.array([json.dumps(row["prediction"]) for row in rows], pa.string()),
        "confidence": pa.array([row.get("confidence") for row in rows], pa.float64()),
        "loss": pa.array([row.get("loss") for row in rows], pa.float64()),
        "correct": pa.array([row.get("correct") for row in rows], pa.bool_()),
    }
    for name in rows[0].get("scores", {}):
        columns[f"score.{name}"] = pa.array([row["scores"][name] for row in rows], pa.float64())
    content = {"format": 1, "run": "1", "step": 90, "rows": len(rows), "kept": len(rows), "labels": [], **about}
    table = pa.table(columns).replace_schema_metadata({"taskrecipe": json.dumps(content)})
    path = folder / "predictions" / f"{split.replace('/', '-')}.parquet"
    pq.write_table(table, path)
    return path


def write_bootstrap(folder: Path, split: str = "validation", **metrics: float) -> None:
    """Write resampled metrics around the given values."""
    random = np.random.default_rng(0)
    columns = {name: value + 0.01 * random.normal(size=1000) for name, value in metrics.items()}
    pq.write_table(pa.table(columns), folder / "predictions" / f"{split}.bootstrap.parquet")


def class_rows(count: int = 400, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of tickets in four classes, of which "refund" is often taken for "billing"."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        right = int(random.integers(4))
        logits = random.normal(size=4)
        logits[right] += 2.2
        if right == 2:
            logits[0] += 1.8
        chances = np.exp(logits) / np.exp(logits).sum()
        found = int(chances.argmax())
        text = f"ticket {number}: " + " ".join(random.choice(["late", "invoice", "parcel", "money"], 3 + number % 17))
        rows.append(
            {
                "source": f"tickets.csv, line {number + 2}",
                "input": {"text": text, "channel": ["mail", "phone", "chat"][number % 3]},
                "reference": {"label": LABELS[right]},
                "prediction": {
                    "label": LABELS[found],
                    "probabilities": dict(zip(LABELS, chances.tolist(), strict=True)),
                },
                "confidence": float(chances[found]),
                "loss": float(-math.log(chances[right])),
                "correct": right == found,
                "scores": {"accuracy": float(right == found)},
            }
        )
    return rows


def value_rows(count: int = 200) -> list[dict[str, Any]]:
    """Rows of a regression."""
    random = np.random.default_rng(0)
    right = random.uniform(0, 5, count)
    found = right + 0.5 * random.normal(size=count)
    return [
        {
            "input": {"sentence1": f"first {k}", "sentence2": f"second {k}"},
            "reference": {"value": a},
            "prediction": {"value": b},
            "loss": (a - b) ** 2,
        }
        for k, (a, b) in enumerate(zip(right.tolist(), found.tolist(), strict=True))
    ]


def box_rows(count: int = 60) -> list[dict[str, Any]]:
    """Rows of a detection on small drawn images."""
    random = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        right, found, pixels = [], [], random.integers(200, 256, (96, 128, 3)).astype(np.uint8)
        for _ in range(int(random.integers(1, 4))):
            x, y, side = (int(value) for value in random.integers(4, 50, 3))
            label = int(random.integers(2))
            pixels[y : y + side, x : x + side] = [[200, 60, 40], [40, 90, 200]][label]
            right.append({"label": ["red", "blue"][label], "box": [x, y, side, side]})
            shift = float(random.normal() * 3)
            box = [x + shift, y + shift, float(side), float(side)]
            found.append({"label": ["red", "blue"][label], "score": float(random.uniform(0.3, 1.0)), "box": box})
        scores = {"score": float(random.uniform())}
        rows.append(
            {
                "input": {"image": None},
                "thumbnail": jpeg(pixels),
                "reference": right,
                "prediction": found,
                "scores": scores,
            }
        )
    return rows


def map_rows(count: int = 30) -> list[dict[str, Any]]:
    """Rows of a semantic segmentation: two classes, and pixels that don't count."""
    random = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        right = (np.add.outer(np.arange(48), np.arange(64)) > random.integers(30, 80)).astype(np.uint8)
        found = np.roll(right, int(random.integers(0, 4)), axis=1)
        right[:2] = 255
        pixels = np.stack([right * 90 + 40, found * 60 + 90, np.full_like(right, 140)], axis=-1)
        reference, prediction = describe_map(right), describe_map(found)
        rows.append(
            {
                "thumbnail": jpeg(pixels),
                "reference": reference,
                "prediction": prediction,
                "loss": float(random.uniform()),
            }
        )
    return rows


def jpeg(pixels: np.ndarray[Any, Any]) -> bytes:
    return _encode(pixels, "JPEG")


def describe_map(classes: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A map in the form in which the recipe answers it."""
    from taskrecipe.vision import pack_masks

    shares = {name: float((classes == number).mean()) for number, name in enumerate(("ground", "sky"))}
    masks = pack_masks(np.stack([classes == number for number in range(2)]))
    return {"classes": shares, "masks": dict(zip(shares, masks, strict=True))}


def _encode(pixels: np.ndarray[Any, Any], kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()
