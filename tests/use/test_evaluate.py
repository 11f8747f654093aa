"""`recipe evaluate`: the same numbers again, other rows, groups of rows, and what it says if something has changed."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.commands import Zygote
from tests.support.runs import GLUE, log, results, write_spec

from taskrecipe import DataError, Interrupted, Run, UsageError, resume, train
from taskrecipe.training.evaluation import Evaluation
from taskrecipe.training.loop import Loop

SPLIT = GLUE.replace('validation = "validation.csv"\n', 'validation = "validation.csv"\ntest = "test.csv"\n')


def write_data(folder: Path, text: str = SPLIT) -> Path:
    """A spec with a test split, and a column that the recipe doesn't read."""
    spec = write_spec(folder, text)
    lines = (folder / "validation.csv").read_text().splitlines()
    marked = [
        f"{line},{'topic' if not number else 'news' if number % 3 else 'sport'}" for number, line in enumerate(lines)
    ]
    (folder / "validation.csv").write_text("\n".join(marked) + "\n")
    (folder / "test.csv").write_text("\n".join([lines[0], *lines[5:12]]) + "\n")
    return spec


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("evaluate")
    settings = {"evaluate.final": ["test"], "checkpoint.keep": 9, "train.learning_rate": 0.01}
    return train(write_data(folder), set=settings, out=folder / "run", quiet=True)


def read_rows(run: Run, split: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run.folder / "predictions" / f"{split}.parquet").to_pylist()
    return rows


@pytest.mark.parametrize("at", ["best", "last", "step-3", "step-6"])
def test_all_evaluated_weights_measure_as_logged(run: Run, at: str) -> None:
    found = run.evaluate(at=at)
    logged = {line["step"]: line["metrics"] for line in log(run.folder, "evaluate")}
    assert found.equal_to_log is True
    assert found.metrics == logged[found.step]
    assert set(found.intervals) == {"accuracy", "f1", "loss"}
    assert found.resamples == {"validation": 1000}


def test_weights_that_were_not_evaluated_have_nothing_to_compare_with(run: Run) -> None:
    found = run.evaluate(at="step-7")
    assert (found.equal_to_log, found.logged) == (None, {})
    assert found.evidence == []


def test_the_test_split_is_evaluated_once_with_the_exported_weights(run: Run) -> None:
    [line] = log(run.folder, "final")
    best = results(run.folder)["best"]
    assert line["weights"] == best["step"]
    assert line["metrics"].keys() == {"test/accuracy", "test/f1", "test/loss"}
    assert line["metrics"].items() <= best["metrics"].items()
    assert "test/f1" in (run.folder / "model" / "README.md").read_text()
    assert not any(name.startswith("test/") for line in log(run.folder, "evaluate") for name in line["metrics"])
    found = run.evaluate(split="test")
    assert found.equal_to_log is True
    assert found.metrics == line["metrics"]
    assert found.rows == {"test": 7}


def test_rows_are_named_by_file_and_record(run: Run) -> None:
    rows = read_rows(run, "validation")
    assert [row["source"] for row in rows[:2]] == [
        "validation.csv record 1 (line 2)",
        "validation.csv record 2 (line 3)",
    ]
    first = json.loads(rows[0]["input"])
    assert first.keys() == {"sentence1", "sentence2", "topic"}
    assert json.loads(rows[0]["reference"]) == {"label": "not_equivalent"}
    assert rows[0]["correct"] == (json.loads(rows[0]["prediction"])["label"] == "not_equivalent")
    losses = [row["loss"] for row in rows]
    assert np.mean(losses) == pytest.approx(results(run.folder)["best"]["metrics"]["loss"])
    assert str(run.folder.parent) not in json.dumps(rows)


def test_groups_of_rows_are_those_of_the_column(run: Run) -> None:
    found = run.evaluate(by="topic")
    rows = read_rows(run, "validation")
    topics = [json.loads(row["input"])["topic"] for row in rows]
    assert list(found.by) == ["news", "sport"]
    for value, group in found.by.items():
        members = [row for row, topic in zip(rows, topics, strict=True) if topic == value]
        assert group.rows == len(members)
        assert group.metrics["accuracy"] == pytest.approx(np.mean([row["correct"] for row in members]))
        assert group.metrics["loss"] == pytest.approx(np.mean([row["loss"] for row in members]), rel=1e-5)
        low, high = group.intervals["loss"]
        assert low < group.metrics["loss"] < high
    with pytest.raises(DataError, match=r"there is no such column to group by.*did you mean 'topic'"):
        run.evaluate(by="topics")


def test_other_files_are_evaluated_with_our_names_or_theirs(run: Run, tmp_path: Path) -> None:
    lines = (run.folder.parent / "validation.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(lines[:9]) + "\n")
    found = run.evaluate(data=tmp_path / "new.csv")
    assert found.rows == {"data-new": 8}
    assert found.equal_to_log is None
    first = read_rows(run, "validation")[:8]
    assert found.metrics["data-new/accuracy"] == np.mean([row["correct"] for row in first])
    assert [row["correct"] for row in read_rows(run, "data-new")] == [row["correct"] for row in first]
    (tmp_path / "bare.jsonl").write_text('{"sentence1": "a", "sentence2": "b"}\n')
    with pytest.raises(DataError, match="the recipe reads 'label'"):
        run.evaluate(data=[tmp_path / "bare.jsonl"])
    with pytest.raises(UsageError, match="not both"):
        run.evaluate(data=tmp_path / "new.csv", split="test")


def test_evidence_of_other_weights_goes_where_it_is_asked_for(run: Run, tmp_path: Path, zygote: Zygote) -> None:
    before = {path: path.stat().st_mtime_ns for path in (run.folder / "predictions").iterdir()}
    done = zygote.run("evaluate", str(run.folder), "--at", "last", "--evidence", "other", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["equal_to_log"] is True
    assert found["evidence"] == ["other/validation.parquet", "other/validation.bootstrap.parquet"]
    about = json.loads(pq.read_schema(tmp_path / "other" / "validation.parquet").metadata[b"taskrecipe"])
    assert about["step"] == 9
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_changed_rows_are_named_and_every_number_is_listed(run: Run, tmp_path: Path, zygote: Zygote) -> None:
    shutil.copytree(run.folder.parent, tmp_path / "copy")
    folder = tmp_path / "copy"
    record = folder / "run" / "environment.json"
    record.write_text(record.read_text().replace(str(run.folder.parent), str(folder)))
    assert zygote.run("evaluate", "run", cwd=folder).code == 0
    lines = (folder / "validation.csv").read_text().splitlines()
    (folder / "validation.csv").write_text("\n".join([*lines[:-1], lines[1]]) + "\n")
    done = zygote.run("evaluate", "run", cwd=folder)
    assert done.code == 4
    assert "the rows of validation have changed since the run read them" in done.stderr
    assert "loss: logged " in done.stderr
    assert zygote.run("evaluate", "run", "--tolerance", "10", cwd=folder).code == 0


def test_a_wrong_number_in_the_log_is_found(run: Run, tmp_path: Path, zygote: Zygote) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    path = tmp_path / "run" / "log.jsonl"
    best = results(run.folder)["best"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["event"] == "evaluate" and line["step"] == best["step"]:
            line["metrics"]["accuracy"] = np.nextafter(line["metrics"]["accuracy"], 1)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = zygote.run("evaluate", str(tmp_path / "run"), cwd=tmp_path)
    assert done.code == 4
    assert "accuracy: logged " in done.stderr
    assert "f1: logged" not in done.stderr


def test_what_is_printed_names_weights_rows_and_intervals(run: Run, zygote: Zygote) -> None:
    done = zygote.run("evaluate", str(run.folder), "--by", "topic", cwd=run.folder.parent)
    assert done.code == 0, done.stderr
    assert f"weights after update {results(run.folder)['best']['step']} (best), 21 rows of validation" in done.stdout
    assert "95 % interval" in done.stdout
    assert "all 3 metrics are equal to the logged ones" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("news", "sport"))] == [
        ["news", "14"],
        ["sport", "7"],
    ]


def test_without_evidence_there_is_none_and_all_else_works(tmp_path: Path) -> None:
    run = train(
        write_data(tmp_path), set={"evaluate.predictions": 0, "train.updates": 3}, out=tmp_path / "run", quiet=True
    )
    assert not (run.folder / "predictions").exists()
    assert run.results["intervals"] == {}
    assert run.evaluate().equal_to_log is True
    assert not (run.folder / "predictions").exists()


def test_only_so_many_rows_are_kept(tmp_path: Path) -> None:
    run = train(
        write_data(tmp_path), set={"evaluate.predictions": 4, "train.updates": 3}, out=tmp_path / "run", quiet=True
    )
    table = pq.read_table(run.folder / "predictions" / "validation.parquet")
    about = json.loads(table.schema.metadata[b"taskrecipe"])
    assert (about["rows"], about["kept"], table.num_rows) == (21, 4, 4)
    numbers = table["row"].to_pylist()
    assert numbers == sorted(set(numbers))
    whole = pq.read_table(run.folder / "predictions" / "validation.bootstrap.parquet")
    assert whole.num_rows == 1000


def test_rows_that_were_held_out_are_recorded_and_evaluated_again(tmp_path: Path) -> None:
    text = GLUE.replace('validation = "validation.csv"\n', "").replace("[train]", "[data]\nholdout = 0.2\n[train]")
    text = text.replace("[data.files]", "[data]\nholdout = 0.2\n[data.files]").replace(
        "[data]\nholdout = 0.2\n[train]", "[train]"
    )
    run = train(write_spec(tmp_path, text), set={"train.updates": 3}, out=tmp_path / "run", quiet=True)
    held_out = json.loads((run.folder / "predictions" / "held_out.json").read_text())
    assert len(held_out["validation"]) == 12
    lines = (tmp_path / "train.csv").read_text().splitlines()[1:]
    rows = read_rows(run, "validation")
    for row, number in zip(rows, held_out["validation"], strict=True):
        assert row["source"] == f"train.csv record {number + 1} (line {number + 2})"
        assert json.loads(row["input"])["sentence1"] == lines[number].split(",")[0]
    assert run.evaluate().equal_to_log is True


def test_a_resumed_run_writes_the_same_evidence(tmp_path: Path) -> None:
    """Killed between the export and the results: what was found is gone, so the weights are evaluated again."""
    settings = {"evaluate.final": ["test"], "train.learning_rate": 0.01, "checkpoint.keep": 9}
    run = train(write_data(tmp_path), set=settings, out=tmp_path / "run", quiet=True)
    best, before = run.results["best"], {split: read_rows(run, split) for split in ("validation", "test")}
    (run.folder / "results.json").unlink()
    shutil.rmtree(run.folder / "predictions")
    again = resume(run.folder, quiet=True)
    assert again.results["best"] == best
    assert {split: read_rows(again, split) for split in before} == before
    assert not [line for line in log(again.folder, "warning") if "evaluated again" in line["message"]]


def test_a_signal_in_the_final_evaluation_stops_the_run_and_it_resumes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, settings = write_data(tmp_path), {"evaluate.final": ["test"], "train.updates": 3}
    inner = Loop.evaluate_splits

    def interrupt(self: Loop, evaluations: list[Evaluation]) -> Any:
        if [evaluation.split for evaluation in evaluations] == ["test"]:
            self.control.interrupt(signal.SIGTERM, "interrupted by SIGTERM")
        return inner(self, evaluations)

    monkeypatch.setattr(Loop, "evaluate_splits", interrupt)
    with pytest.raises(Interrupted) as stopped:
        train(spec, set=settings, out=tmp_path / "run", quiet=True)
    assert stopped.value.exit_code == 143
    assert results(tmp_path / "run")["status"] == "stopped"
    assert not (tmp_path / "run" / "model").exists()
    monkeypatch.undo()
    again = resume(tmp_path / "run", quiet=True)
    assert again.results["status"] == "finished"
    assert "test/f1" in again.results["best"]["metrics"]
    assert again.evaluate(split="test").equal_to_log is True


def test_a_metric_that_is_undefined_is_equal_to_itself(tmp_path: Path) -> None:
    """One class only: a correlation is NaN, in the log as null."""
    text = GLUE.replace('name = "mrpc"', 'name = "stsb"').replace('best = "f1"', 'best = "loss"')
    spec = write_spec(tmp_path, text)
    lines = (tmp_path / "validation.csv").read_text().splitlines()
    (tmp_path / "validation.csv").write_text(
        "\n".join([lines[0], *(f"{line.rsplit(',', 1)[0]},1.5" for line in lines[1:])]) + "\n"
    )
    run = train(spec, set={"train.updates": 3}, out=tmp_path / "run", quiet=True)
    assert run.results["best"]["metrics"]["pearson"] is None
    found = run.evaluate()
    assert found.equal_to_log is True
    assert "pearson" not in found.intervals
    assert "loss" in found.intervals


def test_if_no_evaluation_can_be_the_best_the_last_weights_are_exported(tmp_path: Path) -> None:
    text = SPLIT.replace('name = "mrpc"', 'name = "stsb"').replace('best = "f1"', 'best = "pearson"')
    spec = write_data(tmp_path, text)
    lines = (tmp_path / "validation.csv").read_text().splitlines()
    same = [",".join([*line.split(",")[:2], "1.5", "x"]) for line in lines[1:]]
    (tmp_path / "validation.csv").write_text("\n".join([lines[0], *same]) + "\n")
    (tmp_path / "test.csv").write_text((tmp_path / "train.csv").read_text())
    settings = {"train.updates": 3, "evaluate.final": ["test"]}
    run = train(spec, set=settings, out=tmp_path / "run", quiet=True)
    assert run.results["best"] is None
    assert {"pearson", "test/pearson"} <= run.results["final"].keys()
    assert run.evaluate().equal_to_log is True
    assert len(read_rows(run, "validation")) == 21


@pytest.mark.parametrize("changes", [{"evaluate.batch_size": 1}, {"evaluate.batch_size": 64}, {"data.workers": 1}])
def test_the_numbers_are_equal_in_any_batches(changes: dict[str, Any], tmp_path: Path) -> None:
    run = train(write_data(tmp_path), set={"train.updates": 3, **changes}, out=tmp_path / "run", quiet=True)
    assert run.evaluate().equal_to_log is True


def test_the_numbers_of_two_processes_are_equal_too(run: Run, tmp_path: Path, zygote: Zygote) -> None:
    spec = write_data(tmp_path)
    options = ["--set", 'evaluate.final=["test"]', "--set", "train.updates=3", "--processes", "2"]
    done = zygote.run("run", str(spec), "--out", "run", *options, cwd=tmp_path)
    assert done.code == 0, done.stderr
    two = Run(tmp_path / "run")
    assert two.results["processes"] == 2
    assert len(read_rows(two, "validation")) == 21
    assert len(read_rows(two, "test")) == 7
    done = zygote.run("evaluate", "run", cwd=tmp_path)
    assert done.code == 0, done.stderr
    done = zygote.run("evaluate", "run", "--split", "test", cwd=tmp_path)
    assert done.code == 0, done.stderr
