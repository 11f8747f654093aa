"""`[expect]` is checked at the end of a run, and a replay says whether a run comes out the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import GLUE, bits, results, train, write_spec

RELIABLE = "[expect]\naccuracy = { at_least = 0.0, at_most = 1.0 }\nupdates = 9\n"


@pytest.fixture(scope="module")
def finished(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(zygote, write_spec(tmp_path_factory.mktemp("replay"), GLUE + RELIABLE))


def test_expectations_that_are_met_are_recorded(finished: Path) -> None:
    checks = results(finished)["expect"]
    assert [(check["key"], check["met"]) for check in checks] == [("accuracy", True), ("updates", True)]


def test_a_run_that_is_not_as_expected_ends_with_exit_code_4(zygote: Zygote, finished: Path) -> None:
    spec = finished.parent / "strict.toml"
    right = bits(zygote, finished)
    spec.write_text(
        f'extends = "spec.toml"\n[expect]\nf1 = {{ at_least = 2.0 }}\nfingerprint = "{right}"\nupdates = 10\n'
    )
    folder = finished.parent / "strict"
    done = zygote.run("run", str(spec), "--out", str(folder), cwd=spec.parent)
    assert done.code == 4
    assert "f1: expected at least 2, found" in done.stderr
    assert "updates: expected 10, found 9" in done.stderr
    assert "fingerprint" not in done.stderr  # that is met
    assert results(folder)["status"] == "finished"
    assert (folder / "model").is_dir()


def test_a_replay_has_the_same_bits(zygote: Zygote, finished: Path) -> None:
    out = finished.parent / "same"
    done = zygote.run("replay", str(finished), "--out", str(out), "--json", cwd=finished.parent, OMP_NUM_THREADS="2")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "same bits"
    assert bits(zygote, out) == bits(zygote, finished)
    assert json.loads((out / "environment.json").read_text())["threads"] == 1  # as recorded


def test_a_replay_on_other_data_is_not_the_same_and_says_why(zygote: Zygote, tmp_path: Path) -> None:
    folder = train(zygote, write_spec(tmp_path))
    rows = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    done = zygote.run("replay", str(folder), "--out", str(tmp_path / "other"), cwd=tmp_path)
    assert done.code == 4
    assert "was not reproduced" in done.stderr
    assert "other conditions: data" in done.stderr
    assert "fingerprint.train" in done.stdout


def test_other_bits_with_metrics_as_expected_are_accepted(zygote: Zygote, tmp_path: Path) -> None:
    folder = train(zygote, write_spec(tmp_path, GLUE + RELIABLE))
    rows = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    done = zygote.run("replay", str(folder), "--out", str(tmp_path / "other"), "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "as expected"


def test_a_run_that_has_not_finished_is_not_replayed(zygote: Zygote, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 1, "id": "x"}')
    done = zygote.run("replay", str(tmp_path), cwd=tmp_path)
    assert done.code == 2
    assert "has not finished" in done.stderr
