"""`recipe predict`: rows of any file without targets, in order, whole after kill -9, bad rows named."""

from __future__ import annotations

import csv
import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import runs
from tests.support.commands import Zygote

from taskrecipe import DataError, Run, UsageError

Texts = list[dict[str, str]]


@pytest.fixture(scope="module")
def run(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    return runs.train(zygote, runs.write_spec(folder), "run", "--set", "train.updates=3")


@pytest.fixture(scope="module")
def answers(run: Path) -> list[Any]:
    """What the run answers to the first rows of `texts`, asked from Python."""
    return Run(run).predict(texts(40))


def texts(count: int) -> Texts:
    from taskrecipe.text.sample_text import sentence

    random = np.random.default_rng(5)
    return [{"id": f"{n:03d}", "sentence1": sentence(random), "sentence2": sentence(random)} for n in range(count)]


def write_csv(path: Path, rows: Texts, separator: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: Texts) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write(path: Path, rows: Texts) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    return write_jsonl(path, rows) if path.suffix == ".jsonl" else write_csv(path, rows, _SEPARATORS[path.suffix])


_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def predict(zygote: Zygote, run: Path, *arguments: str | Path, code: int = 0) -> Any:
    done = zygote.run("predict", str(run), *map(str, arguments), cwd=run.parent)
    assert done.code == code, done.stderr
    return done


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_every_table_is_answered_in_order_with_its_columns(
    zygote: Zygote, run: Path, answers: list[Any], tmp_path: Path, ending: str
) -> None:
    rows = texts(40)
    lines = predict(zygote, run, write(tmp_path / f"new.{ending}", rows)).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {**row, "prediction": answer} for row, answer in zip(rows, answers, strict=True)
    ]


def test_every_output_holds_the_same(zygote: Zygote, run: Path, answers: list[Any], tmp_path: Path) -> None:
    given = write_csv(tmp_path / "new.csv", texts(40))
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        assert "answers: " in predict(zygote, run, given, "-o", tmp_path / name).stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == answers
    with (tmp_path / "out.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert list(cells[0]) == [
        *("id", "sentence1", "sentence2", "prediction.label"),
        *("prediction.probabilities.not_equivalent", "prediction.probabilities.equivalent"),
    ]
    assert [float(row["prediction.probabilities.equivalent"]) for row in cells] == [
        a["probabilities"]["equivalent"] for a in answers
    ]
    assert [row["id"] for row in cells] == [row["id"] for row in texts(40)]
    assert pq.read_table(tmp_path / "out.parquet")["prediction.label"].to_pylist() == [a["label"] for a in answers]
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv", "out.jsonl", "out.csv", "out.parquet"}


def test_targets_in_the_input_are_kept_and_never_read(zygote: Zygote, run: Path, tmp_path: Path) -> None:
    rows = [{**row, "label": "nonsense"} for row in texts(5)]
    lines = predict(zygote, run, write_csv(tmp_path / "new.csv", rows)).stdout.splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["nonsense"] * 5


def test_one_percent_of_broken_rows(zygote: Zygote, run: Path, tmp_path: Path) -> None:
    """A csv as the world has them: too many fields, too few, no text, a stray quote, bytes that are no text."""
    rows = texts(600)
    good = write_csv(tmp_path / "good.csv", rows)
    lines = good.read_bytes().splitlines(keepends=True)
    broken = [b"a,b,c,d\n", b"a,b\n", b"900,some text,\n", b'"stray,text,more\n', b"901,\xff\xfe,text\n", b"902\n"]
    places = [17, 100, 101, 350, 480, 600]
    for place, bad in zip(reversed(places), reversed(broken), strict=True):
        lines.insert(place, bad)
    (tmp_path / "bad.csv").write_bytes(b"".join(lines))
    refused = predict(zygote, run, tmp_path / "bad.csv", "-o", tmp_path / "out.jsonl", code=3)
    assert "there are 6 problems" in refused.stderr
    assert f"'{tmp_path / 'bad.csv'}' record 17 (line 18): has 4 fields, but the header has 3" in refused.stderr
    assert "record 103 (line 104): column 'sentence2': there is no text" in refused.stderr
    assert not (tmp_path / "out.jsonl").exists()
    done = predict(zygote, run, tmp_path / "bad.csv", "-o", tmp_path / "out.jsonl", "--skip-bad")
    assert "6 rows were left out" in done.stderr
    left_out = [json.loads(line) for line in (tmp_path / "out.bad.jsonl").read_text().splitlines()]
    assert [entry["place"].split("(")[1] for entry in left_out] == [
        f"line {place + 1 + number})" for number, place in enumerate(places)
    ]
    kept = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in kept] == [row["id"] for row in rows]
    # Rows that were left out change nothing for the others but which of them share a batch.
    predict(zygote, run, good, "-o", tmp_path / "good.jsonl")
    whole = [json.loads(line) for line in (tmp_path / "good.jsonl").read_text().splitlines()]
    for one, other in zip(kept, whole, strict=True):
        one, other = one["prediction"]["probabilities"], other["prediction"]["probabilities"]
        assert one == pytest.approx(other, abs=1e-6)


def test_killed_and_started_again_it_goes_on(zygote: Zygote, run: Path, tmp_path: Path) -> None:
    given = write_csv(tmp_path / "new.csv", texts(1024 * 4 + 100))
    predict(zygote, run, given, "-o", tmp_path / "whole.csv")
    out, part = tmp_path / "out.csv", tmp_path / ".out.csv.part"
    for window in (0, 2):
        started = zygote.start("predict", str(run), str(given), "-o", str(out), cwd=tmp_path)
        wait_for(part / f"window-{window}.jsonl", started)
        started.send(signal.SIGKILL)
        started.wait()
        assert not out.exists()
    before = (part / "window-0.jsonl").stat().st_mtime_ns
    started = zygote.start("predict", str(run), str(given), "-o", str(out), "--processes", "2", cwd=tmp_path)
    while started.poll() is None and not (part / "window-4.jsonl").exists():
        assert not (part / "window-0.jsonl").exists() or (part / "window-0.jsonl").stat().st_mtime_ns == before
        time.sleep(0.05)
    assert started.wait() == 0, started.stderr
    assert "going on after" in started.stderr
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not part.exists()


def wait_for(path: Path, started: Any) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert started.poll() is None, started.stderr
        assert time.monotonic() < end
        time.sleep(0.005)


def test_another_input_is_never_mixed_in(zygote: Zygote, run: Path, tmp_path: Path) -> None:
    given, out = write_csv(tmp_path / "new.csv", texts(1500)), tmp_path / "out.csv"
    started = zygote.start("predict", str(run), str(given), "-o", str(out), cwd=tmp_path)
    wait_for(tmp_path / ".out.csv.part" / "window-0.jsonl", started)
    started.send(signal.SIGKILL)
    started.wait()
    write_csv(given, texts(1400))
    refused = predict(zygote, run, given, "-o", out, code=2)
    assert "holds a part of another prediction: input differ" in refused.stderr
    other = predict(zygote, run, given, "-o", out, "--at", "step-3", code=2)
    assert "weights and input differ" in other.stderr


def test_a_pipe_answers_each_line_before_the_next_is_sent(run: Path) -> None:
    import os
    import subprocess
    import sys

    process = subprocess.Popen(
        [sys.executable, "-m", "taskrecipe", "predict", str(run), "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin
    assert process.stdout
    for row in texts(3):
        process.stdin.write(json.dumps(row).encode() + b"\n")
        process.stdin.flush()
        answered = json.loads(process.stdout.readline())
        assert answered["id"] == row["id"]
        assert answered["prediction"]["label"] in ("not_equivalent", "equivalent")
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


def test_processes_change_no_byte(zygote: Zygote, run: Path, tmp_path: Path) -> None:
    given = write_csv(tmp_path / "new.csv", texts(2100))
    for processes in (1, 2):
        predict(zygote, run, given, "-o", tmp_path / f"{processes}.parquet", "--processes", str(processes))
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.csv"], "there is no file 'nothing.csv'"),
        (["new.csv", "-o", "out.xls"], "an output ends in .csv"),
        (["new.csv", "-o", "full"], "full is not empty"),
        (["new.csv", "--at", "step-99"], "no checkpoint 'step-99'"),
        (["new.csv", "--task", "mrpc"], "has one task only"),
        (["new.csv", "--nearest", "new.csv"], "needs a run that embeds texts"),
        (["new.csv", "--set", "train.epochs=3"], "only how it predicts"),
        (["new.csv", "--set", "predict.beems=3"], "did you mean 'beams'"),
        (["new.pdf"], "its ending is none of"),
        (["taken.csv"], "the input has a column 'prediction'"),
    ],
)
def test_what_can_t_be_done_is_said(
    zygote: Zygote, run: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    write_csv(tmp_path / "new.csv", texts(2))
    write_csv(tmp_path / "taken.csv", [{**row, "prediction": "x"} for row in texts(2)])
    (tmp_path / "new.pdf").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = zygote.run("predict", str(run), *arguments, cwd=tmp_path)
    assert done.code == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_column_is_named(zygote: Zygote, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("sentence1,other\na,b\nc,d\n")
    done = predict(zygote, run, tmp_path / "new.csv", code=3)
    assert "sentence2" in done.stderr


def test_rows_from_python(run: Path, answers: list[Any], tmp_path: Path) -> None:
    from datasets import Dataset

    trained = Run(run)
    assert trained.predict(Dataset.from_list(texts(40))) == answers
    assert trained.predict(write_jsonl(tmp_path / "new.jsonl", texts(40))) == answers
    assert trained.predict([]) == []
    bad = [*texts(3), {"sentence1": "alone"}]
    with pytest.raises(DataError, match="row 3: column 'sentence2': there is no text"):
        trained.predict(bad)
    found = trained.predict(bad, skip_bad=True)
    assert found[3] is None
    assert [one["label"] for one in found[:3]] == [one["label"] for one in answers[:3]]
    with pytest.raises(UsageError, match="it takes best, last, or step-N"):
        trained.predict(texts(1), at="newest")
    assert trained.predict(texts(3), at="last")[0].keys() == answers[0].keys()


VALUES = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.lists(st.text(max_size=3), max_size=2),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(st.sampled_from(["sentence1", "sentence2", "label", "x"]), VALUES), max_size=6))
def test_any_rows_are_answered_or_named(run: Path, rows: list[dict[str, Any]], loaded: Run) -> None:
    found = loaded.predict(rows, skip_bad=True)
    assert len(found) == len(rows)
    for row, answer in zip(rows, found, strict=True):
        usable = all(isinstance(row.get(name), str) for name in ("sentence1", "sentence2"))
        assert (answer is not None) == usable


@pytest.fixture(scope="module")
def loaded(run: Path) -> Run:
    return Run(run)
