"""`recipe watch`: follows a run from its log, whatever happens to it, and ends when the run does."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.reported_runs import make_log, write_run
from tests.support.runs import log, write_spec

from taskrecipe.report.history import read_history
from taskrecipe.run.log_tail import LogTail
from taskrecipe.run.watch import BARS, describe_state, draw_sparkline, estimate_left, watch_run


def test_the_lines_of_a_run_are_those_it_printed_itself(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    started = zygote.start("run", str(spec), "--out", "run", "--set", "train.updates=40", cwd=tmp_path)
    wait_for_log(tmp_path / "run")
    watched = zygote.run("watch", "run", cwd=tmp_path)
    assert started.wait() == 0
    assert watched.code == 0, watched.stderr
    printed = [line for line in started.stderr.splitlines() if line.startswith(("update", "evaluation", "finished"))]
    assert [
        line for line in watched.stdout.splitlines() if line.startswith(("update", "evaluation", "finished"))
    ] == printed
    assert len(printed) > 40


def test_watching_ends_when_the_process_is_gone(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    started = zygote.start("run", str(spec), "--out", "run", "--set", "train.updates=100000", cwd=tmp_path)
    wait_for_log(tmp_path / "run")
    watching = zygote.start("watch", "run", cwd=tmp_path)
    time.sleep(0.5)
    os.killpg(started.pid, signal.SIGKILL)
    assert watching.wait(30) == 4
    assert watching.stdout.splitlines()[-1] == "interrupted: the process is gone. Continue with: recipe resume run"


def wait_for_log(folder: Path) -> None:
    end = time.monotonic() + 60
    while not (folder / "log.jsonl").exists() or not log(folder, "update"):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_terminal_gets_a_view_that_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    assert watch_run(write_run(tmp_path / "tickets"), stream) == "finished"
    for part in ("tickets", "120 of 120", "best 0.8701 after update 90", "updates/s", "1020.0 MiB", "step-120"):
        assert part in stream.getvalue(), part


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_state_names_the_time_left() -> None:
    records = [record for record in make_log() if record["step"] <= 60]
    history = read_history(records)
    state = describe_state(history, "running")
    left = estimate_left(history)
    assert left == pytest.approx(60 * 0.5, rel=0.1)
    assert state["time left"] == f"{left:.1f} s"
    assert "60 of 120" in state["updates"]
    assert "time left" not in describe_state(history, "finished")


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert draw_sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == BARS
    assert draw_sparkline([3.0, 3.0]) == BARS[0] * 2
    assert len(draw_sparkline([float(number % 17) for number in range(1000)], 40)) <= 40


# The log as it grows --------------------------------------------------------------------------------------


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    assert tail.read_new() == ([], False)
    path.write_text('{"step": 1}\n{"st')
    assert tail.read_new() == ([{"step": 1}], False)
    assert tail.read_new() == ([], False)
    with path.open("a") as file:
        file.write('ep": 2}\nno json\n[1]\n{"step": 3}\n')
    assert tail.read_new() == ([{"step": 2}, {"step": 3}], False)


def test_a_log_that_was_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(5)))
    assert len(tail.read_new()[0]) == 5
    replacement = tmp_path / "new"  # as a resumed run replaces its log
    replacement.write_text("".join(f'{{"step": {step}}}\n' for step in range(9)))
    replacement.replace(path)
    assert tail.read_new() == ([{"step": step} for step in range(9)], True)
    path.write_text(json.dumps({"step": 0}) + "\n")
    assert tail.read_new() == ([{"step": 0}], True)
