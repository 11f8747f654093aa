"""Real runs side by side: trained on sample data with two learning rates, compared from their folders alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.commands import Zygote
from tests.support.runs import results, train, write_spec

from taskrecipe import Comparison, Run, compare, diff_specs, list_runs


@pytest.fixture(scope="module")
def runs(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that differ in their learning rate, and a third that differs from the first in its seed."""
    spec = write_spec(tmp_path_factory.mktemp("compared"))
    changes = {"slow": "train.learning_rate=1e-4", "fast": "train.learning_rate=5e-3", "other": "seed=4"}
    base = ["train.learning_rate=1e-4", "train.updates=40", "evaluate.every=20", "checkpoint.every=20"]
    sets = {name: [word for one in [*base, change] for word in ("--set", one)] for name, change in changes.items()}
    return [train(zygote, spec, name, *words) for name, words in sets.items()]


def read(run: Path, column: str) -> np.ndarray:
    return pq.read_table(run / "predictions" / "validation.parquet")[column].to_numpy()


def test_metrics_are_those_of_the_results_with_intervals_and_p_values(runs: list[Path]) -> None:
    found = compare(*runs[:2])
    recorded = [results(run)["best"]["metrics"] for run in runs[:2]]
    [comparison] = found.comparisons
    assert {one.metric for one in comparison.metrics} == recorded[0].keys()
    for one in comparison.metrics:
        assert [one.first, one.second] == pytest.approx([metrics[one.metric] for metrics in recorded])
        assert one.interval is not None, one
        assert one.p_value is not None, one
        assert one.interval.low <= one.difference <= one.interval.high
    assert (comparison.notes, found.notes) == ([], [])
    assert [difference.key for difference in found.spec] == ["train.learning_rate"]
    assert [difference.values for difference in diff_specs(*runs[:2])] == [found.spec[0].values]
    assert found.conditions == []


def test_rows_fixed_and_broken_are_those_of_the_evidence(runs: list[Path]) -> None:
    [rows] = compare(*map(Run, runs[:2]), rows=100).comparisons[0].rows
    before, after = (read(run, "correct") for run in runs[:2])
    assert (rows.fixed, rows.broken) == (int((after & ~before).sum()), int((before & ~after).sum()))
    assert rows.fixed + rows.broken > 0
    for example in rows.examples:
        assert example.reference["label"] == (example.second if example.change == "fixed" else example.first)["label"]
        assert example.input.keys() == {"sentence1", "sentence2"}
        assert example.source is not None
        assert "validation.csv" in example.source


def test_another_seed_of_the_baseline_joins_it(runs: list[Path]) -> None:
    found: Comparison = compare(*runs)
    assert [len(side.runs) for side in found.sides] == [2, 1]
    assert found.to_json()["seeds"][0]["metrics"]["f1"]["values"].keys() == {"3", "4"}


def test_the_command_and_the_list_agree(runs: list[Path], zygote: Zygote) -> None:
    done = zygote.run("compare", *map(str, runs[:2]), "--json", cwd=runs[0].parent)
    assert done.code == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads(json.dumps(compare(*runs[:2]).to_json()))
    listed = {run.name: run.best for run in list_runs(runs[0].parent, where=["state=finished"], sort="best")}
    assert {run["name"]: run["best"]["value"] for run in printed["runs"]} == {
        name: best.value for name, best in listed.items() if best and name != "other"
    }
