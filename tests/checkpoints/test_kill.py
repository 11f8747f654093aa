"""Whatever moment a process is killed at, the newest checkpoint is whole, and no committed one is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def _kill(folder: Path, trials: int, seed: int, script: str = "killed_commits") -> int:
    command = [sys.executable, "-m", f"tests.support.{script}", str(folder), str(trials), str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "LC_ALL": "C"})
    assert result.returncode == 0, result.stderr[-2000:]
    return int(result.stdout)


def test_ten_kills_lose_nothing_that_was_committed(tmp_path: Path):
    assert _kill(tmp_path / "checkpoints", trials=10, seed=1) >= 10


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
def test_fifty_kills_lose_nothing_that_was_committed(tmp_path: Path, seed: int):
    assert _kill(tmp_path / "checkpoints", trials=50, seed=seed) >= 50


@pytest.mark.parametrize("trials", [9, pytest.param(150, marks=pytest.mark.chaos)])
def test_any_of_several_writing_processes_may_be_killed(tmp_path: Path, trials: int):
    assert _kill(tmp_path / "checkpoints", trials, seed=trials, script="killed_shards") >= trials // 3
