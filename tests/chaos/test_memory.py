"""Evaluating ten times the rows takes no more memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

RECIPE = Path(sys.executable).with_name("recipe")

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
    arguments = ["run", "spec.toml", "--out", f"run-{rows}"]
    pid = os.posix_spawn(
        RECIPE,
        [str(RECIPE), *arguments],
        {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        file_actions=[(os.POSIX_SPAWN_OPEN, 2, str(folder / f"{rows}.err"), os.O_WRONLY | os.O_CREAT, 0o600)],
    )
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, (folder / f"{rows}.err").read_text()
    return usage.ru_maxrss


@pytest.mark.parametrize(
    ("few", "many"), [(30, 300), pytest.param(200, 2000, marks=pytest.mark.chaos)], ids=["300 rows", "2000 rows"]
)
def test_evaluation_memory_is_flat(few: int, many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(CLM)
    (tmp_path / "train.txt").write_text("the old sailor waits near the harbour while gulls cry above him\n" * 40)
    assert peak_of_run(tmp_path, many) < 1.05 * peak_of_run(tmp_path, few)
