"""Evaluating or predicting ten times the rows takes no more memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset
from tests.support.runs import write_spec

from taskrecipe.use.records import WINDOW

RECIPE = Path(sys.executable).with_name("recipe")

KEEP_NOTHING = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Lets the C library give memory back at once. By default it keeps what was freed, and the peak varies by a half."""

MEASURE = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Starts the command from a small process: on Linux a peak includes what the starting process held, here pytest."""

CLM = """\
spec_version = 1
recipe = "clm"
[task]
length = 32
tokenizer = { vocab_size = 300 }
[model]
type = "gpt2"
[model.config]
vocab_size = 50000
n_embd = 16
n_layer = 1
n_head = 1
[data.files]
train = "train.txt"
validation = "validation.txt"
[train]
updates = 1
batch_size = 2
learning_rate = 1e-3
[evaluate]
every = "end"
batch_size = 4
"""


def peak_of_run(folder: Path, rows: int) -> int:
    """The most memory that a run held that evaluates as many rows, in kilobytes."""
    (folder / "validation.txt").write_text("the boats leave the harbour every morning and wait .\n" * rows)
    return peak_of("run", "spec.toml", "--out", f"run-{rows}")


def peak_of(*arguments: str) -> int:
    """The most memory that a command held, in kilobytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(RECIPE), *arguments],
        env={**os.environ, **KEEP_NOTHING, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("few", "many"), [(10, 100), pytest.param(200, 2000, marks=pytest.mark.chaos)], ids=["100 rows", "2000 rows"]
)
def test_evaluation_memory_is_flat(few: int, many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(CLM)
    (tmp_path / "train.txt").write_text("the old sailor waits near the harbour while gulls cry above him\n" * 40)
    assert peak_of_run(tmp_path, many) < 1.05 * peak_of_run(tmp_path, few)


@pytest.mark.chaos
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_prediction_memory_is_flat(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    peak_of("run", "spec.toml", "--out", "run")
    few, many = (write_rows(tmp_path, count, ending) for count in (2 * WINDOW, 20 * WINDOW))
    assert peak_of("predict", "run", many, "-o", f"many-answers.{ending}") < 1.05 * peak_of(
        "predict", "run", few, "-o", f"few-answers.{ending}"
    )


def write_rows(folder: Path, count: int, ending: str) -> str:
    """Write as many pairs of sentences without labels."""
    pairs = [(f"the boat {number} leaves", "the gulls wait near the harbour") for number in range(count)]
    rows = Dataset.from_dict(dict(zip(("sentence1", "sentence2"), zip(*pairs, strict=True), strict=True)))
    path = folder / f"rows-{count}.{ending}"
    {"csv": rows.to_csv, "jsonl": rows.to_json, "parquet": rows.to_parquet}[ending](path)
    return path.name
