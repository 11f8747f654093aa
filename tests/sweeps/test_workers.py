"""Accelerators are dealt out one set a run, and what a warm process answers is never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskrecipe.sweeps.folder import MODULES, SweepFolder
from taskrecipe.sweeps.jobs import Order
from taskrecipe.sweeps.warm_process import Server
from taskrecipe.sweeps.workers import Worker, Workers, find_devices


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the warm process answers next."""
    answers: list[dict[str, Any]] = []

    def read(self: Workers, seconds: float) -> list[dict[str, Any]]:
        found, self._pending = [*self._pending, *answers], []
        answers.clear()
        return found

    monkeypatch.setattr(Workers, "_read", read)
    monkeypatch.setattr(Workers, "_write", lambda self, line: sent.append(line))
    sent: list[str] = []
    return answers


def order(name: str) -> Order:
    return Order("sweep", name, "file", {})


def test_each_run_has_accelerators_of_its_own(
    monkeypatch: pytest.MonkeyPatch, answered: list[dict[str, Any]], tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 1,2,3")
    workers = Workers(tmp_path / "log", parallel=8, processes=2)
    assert workers.slots == 2
    for number, name in enumerate(["a", "b"]):
        answered.append({"claimed": name, "pid": number + 1})
        workers.start(order(name))
    assert [worker.devices for worker in workers.running.values()] == [("0", "1"), ("2", "3")]
    answered.append({"ended": "a", "code": 0})
    assert workers.collect_ended() == {"a": 0}
    answered.append({"claimed": "c", "pid": 3})
    workers.start(order("c"))
    assert workers.running["c"].devices == ("0", "1")


def test_without_accelerators_only_parallel_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_devices() == []
    assert Workers(tmp_path / "log", parallel=3, processes=2).slots == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert Workers(tmp_path / "log", parallel=3, processes=1, on_cpu=True).slots == 3


def test_an_answer_about_another_run_is_kept(answered: list[dict[str, Any]], tmp_path: Path) -> None:
    workers = Workers(tmp_path / "log", parallel=2, processes=1, on_cpu=True)
    answered.append({"claimed": "a", "pid": 1})
    workers.start(order("a"))
    answered += [{"ended": "a", "code": 0}, {"claimed": "b", "pid": 2}, {"ended": "b", "code": 4}]
    workers.start(order("b"))
    assert workers.collect_ended() == {"a": 0, "b": 4}
    answered.append({"ended": "c", "code": 1})  # before it had its lock
    workers.start(order("c"))
    assert workers.collect_ended() == {"c": 1}


class FakeWarm:
    """A warm process that says what the test writes."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self.stdout, self.stdin = os.fdopen(reading, "rb", buffering=0), None

    def say(self, text: str) -> None:
        os.write(self.writing, text.encode())

    def kill(self) -> None: ...

    def wait(self, seconds: float = 0.0) -> int:
        self.stdout.close()
        return -9


def test_that_it_is_ready_counts_whoever_reads_it(tmp_path: Path) -> None:
    workers, warm = Workers(tmp_path / "log", parallel=1, processes=1, on_cpu=True), FakeWarm()
    workers._warm = warm  # type: ignore[assignment]
    assert not workers.is_ready()
    warm.say('imported\n{"ready": true}\n')
    assert workers.collect_ended() == {}
    assert workers.is_ready()
    os.close(warm.writing)
    warm.wait()


def test_runs_of_a_warm_process_that_was_killed_are_followed(tmp_path: Path) -> None:
    workers, warm = Workers(tmp_path / "log", parallel=1, processes=1, on_cpu=True), FakeWarm()
    workers._warm = warm  # type: ignore[assignment]
    sleeper = subprocess.Popen(["sleep", "60"])
    workers.running["a"] = Worker("a", sleeper.pid)
    os.close(warm.writing)
    assert workers.collect_ended() == {}
    assert workers.running.keys() == {"a"}
    sleeper.kill()
    sleeper.wait()
    assert workers.collect_ended() == {"a": 0}


def test_what_a_run_had_to_import_is_imported_once_for_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, server = SweepFolder(tmp_path / "sweep"), Server()
    folder.state.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_by_a_run.py").write_text("")
    assert not server._import_modules(folder), "no run has kept anything yet"
    (folder.state / MODULES).write_text(json.dumps({"modules": ["json", "imported_by_a_run", "not_there_any_more"]}))
    assert server._import_modules(folder)
    assert "imported_by_a_run" in sys.modules
    assert not server._import_modules(folder), "there is nothing new"
