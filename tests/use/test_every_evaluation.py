"""For every recipe: an evaluation gives the logged numbers, and its evidence adds up to them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from taskrecipe import Run, train
from taskrecipe.use.bootstrap import draw_resample

SPECS = Path(__file__).parents[2] / "specs"
RECIPES = {
    "glue": "mrpc.toml",
    "mnli": "glue/mnli.toml",
    "regression": "glue/stsb.toml",
    "clm": "clm.toml",
    "mlm": "mlm.toml",
    "swag": "swag.toml",
    "mim": "mim.toml",
    "detection": "detection.toml",
    "image_classification": "contrib/image_classification.toml",
    "instance_segmentation": "contrib/instance_segmentation.toml",
    "semantic_segmentation": "contrib/semantic_segmentation.toml",
    "question_answering": "contrib/question_answering.toml",
    "seq2seq": "contrib/seq2seq.toml",
    "token_classification": "contrib/token_classification.toml",
    "two_tower": "contrib/two_tower.toml",
    "multitask": "contrib/multitask.toml",
    "chat": "contrib/chat.toml",
    "preference": "contrib/preference.toml",
    "reward": "contrib/reward.toml",
}
SHORT = {
    "train.updates": 2,
    "train.batch_size": 6,
    "train.accumulate": 1,
    "schedule.warmup": 0,
    "evaluate.every": 1,
    "evaluate.batch_size": 5,
    "evaluate.final": ["test"],
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
}


def limit_rows(name: str) -> dict[str, Any]:
    """Keep each run short. Joined texts make few rows, so that they need more of them."""
    splits = {"mnli": ["matched", "mismatched", "test"], "multitask": ["mrpc", "rte", "stsb"]}
    counts = dict.fromkeys(splits.get(name, ["validation", "test"]), 13)
    return {"data.limit": {**({} if name == "multitask" else {"train": 40}), **counts}}


@pytest.fixture(scope="module", params=RECIPES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    settings = {**SHORT, **limit_rows(request.param)}
    return train(SPECS / RECIPES[request.param], set=settings, out=folder / "run", sample=True, quiet=True)


def test_an_evaluation_gives_the_logged_numbers(run: Run) -> None:
    found = run.evaluate()
    assert found.equal_to_log is True
    assert found.metrics.keys() == found.logged.keys()
    assert set(found.metrics) | {name for name in run.results["best"]["metrics"] if "test/" in name} == set(
        run.results["best"]["metrics"]
    )
    for name, (low, high) in found.intervals.items():
        assert low <= high
        assert low - 1e-9 <= found.metrics[name] <= high + 1e-9 or name.endswith(("map", "iou")), name


def test_the_evidence_adds_up_to_the_metrics(run: Run) -> None:
    files = sorted(path for path in (run.folder / "predictions").glob("*.parquet") if "bootstrap" not in path.name)
    assert files
    for path in files:
        table = pq.read_table(path)
        about, rows = json.loads(table.schema.metadata[b"taskrecipe"]), table.to_pylist()
        assert [row["row"] for row in rows] == list(range(about["rows"]))
        assert about["kept"] == about["rows"]
        assert about["step"] == run.results["best"]["step"]
        for name, value in about["metrics"].items():
            if f"score.{name}" in table.column_names:
                assert_close(mean([row[f"score.{name}"] for row in rows]), value)
            prefix = "" if about["split"] == "validation" else f"{about['split']}/"
            assert_close(run.results["best"]["metrics"][f"{prefix}{name}"], value)
        if "score.accuracy" in table.column_names:
            assert [row["correct"] for row in rows] == [row["score.accuracy"] == 1.0 for row in rows]
        for row in rows:
            for column in ("input", "prediction", "reference"):
                assert row[column] is None or json.loads(row[column], parse_constant=refuse) is not None
        check_bootstrap(path, about)


def check_bootstrap(path: Path, about: dict[str, Any]) -> None:
    """Every metric of `score` that a scorer knows has a column; a mean can be computed again from the rows."""
    rows, resampled = pq.read_table(path), pq.read_table(path.with_suffix("").with_suffix(".bootstrap.parquet"))
    assert set(about["directions"]) - {"loss"} <= set(resampled.column_names)
    for name in about["metrics"]:
        if f"score.{name}" in rows.column_names:
            values = np.array(rows[f"score.{name}"].to_pylist(), dtype=float)
            for number in (0, 3):
                expected = mean(values[draw_resample(about["rows"], number)].tolist())
                assert_close(resampled[name][number].as_py(), expected)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def mean(values: list[float | None]) -> float:
    counted = [value for value in values if value is not None and not math.isnan(value)]
    return math.fsum(counted) / len(counted) if counted else math.nan


def assert_close(one: float | None, other: float | None) -> None:
    """JSON has null for NaN."""
    left, right = (math.nan if value is None else value for value in (one, other))
    assert math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(left) and math.isnan(right))
