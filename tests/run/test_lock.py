from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from taskrecipe.errors import UsageError
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.lock import HOLDER, FolderLock

HOLD = """
import os, signal, sys
from pathlib import Path
from taskrecipe.run.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
worker = os.fork() if len(sys.argv) > 2 else None
if worker != 0:
    print(worker, flush=True)
signal.pause()
"""


def _holder(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A process that has the lock, and what it told when it had."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_one_who_comes_second_is_told_who_was_first(tmp_path: Path):
    process, _ = _holder(tmp_path)
    try:
        with pytest.raises(UsageError, match=rf"in use by process {process.pid} on \S+ since \d\d\d\d-\d\d-\d\dT"):
            FolderLock(tmp_path).acquire()
    finally:
        _end(process)


def test_a_lock_left_by_a_killed_process_is_taken_over(tmp_path: Path):
    process, _ = _holder(tmp_path)
    _end(process)
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert json.loads((tmp_path / HOLDER).read_text())["pid"] == os.getpid()
    lock.release()


def test_a_worker_that_outlives_its_killed_run_does_not_hold_the_lock(tmp_path: Path):
    process, worker = _holder(tmp_path, "with a worker")
    try:
        process.kill()
        process.wait()
        os.kill(int(worker), 0)  # it is alive
        FolderLock(tmp_path).acquire()
    finally:
        os.kill(int(worker), signal.SIGKILL)
        process.communicate()


def test_a_lock_given_back_is_free_and_names_nobody(tmp_path: Path):
    one, other = FolderLock(tmp_path), FolderLock(tmp_path)
    one.acquire()
    one.acquire()  # it has it already
    with pytest.raises(UsageError):
        other.acquire()
    one.release()
    assert not (tmp_path / HOLDER).exists()
    other.acquire()
    other.release()
    other.release()  # nothing left to give back


def test_a_lock_is_freed_from_another_thread(tmp_path: Path):
    one, other = FolderLock(tmp_path), FolderLock(tmp_path)
    one.acquire()
    thread = threading.Thread(target=one.release)
    thread.start()
    thread.join()
    other.acquire()
    other.release()


def test_a_damaged_name_of_the_holder_does_not_hide_that_the_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskrecipe.run.lock.PATIENCE", 0.1)
    one = FolderLock(tmp_path)
    one.acquire()
    (tmp_path / HOLDER).write_text("{")
    with pytest.raises(UsageError, match="in use by another process"):
        FolderLock(tmp_path).acquire()
    one.release()


def test_of_two_runs_started_at_once_exactly_one_has_the_folder(tmp_path: Path):
    command = [sys.executable, "-m", "tests.support.double_start", str(tmp_path), "20"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    rounds = [line.split("\t") for line in output.splitlines()]
    assert len(rounds) == 20
    for number, (have, refused) in enumerate(rounds):
        assert have.startswith("have ")
        assert refused.startswith("refused ")
        assert "in use by" in refused or "already holds a run" in refused
        assert have.removeprefix("have ") == RunFolder.open(tmp_path / str(number)).run_id
