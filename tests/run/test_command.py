"""`recipe run` as a user sees it: the first command of the README, a terminal, a pipe that breaks."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from tests.support.commands import Started, Zygote
from tests.support.runs import bits, log, results, resume, train, write_spec

ROOT = Path(__file__).parents[2]
RECIPE = Path(sys.executable).with_name("recipe")
ESCAPE = "\x1b"


def test_the_first_command_works_without_a_hub(zygote: Zygote, tmp_path: Path) -> None:
    done = zygote.run("run", str(ROOT / "specs" / "mrpc.toml"), cwd=tmp_path)
    assert done.code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["spec", "device", "folder", "data", "model"]
    assert lines[5].startswith("!! Training on SAMPLE data with a tiny model")
    assert "HF_HUB_OFFLINE is set" in lines[5]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mrpc-sample"]
    folder = tmp_path / "runs" / "mrpc-sample"
    assert results(folder)["status"] == "finished"
    assert results(folder)["data"] == "sample"
    assert results(folder)["final"]["accuracy"] > 0.9
    assert "sample" in (folder / "model" / "README.md").read_text().lower()
    assert lines[-1] == "run folder: runs/mrpc-sample"
    assert re.fullmatch(r"best f1 [0-9.]+ after update [0-9]+", lines[-2])
    assert (folder / "report.html").exists()
    assert "  recipe report runs/mrpc-sample" in lines
    assert "  recipe predict runs/mrpc-sample INPUT -o predictions.jsonl" in lines
    longer = next(line.strip().partition("   #")[0] for line in lines if "# train longer" in line)
    again = zygote.run(*longer.split()[1:], cwd=tmp_path)
    assert again.code == 0, again.stderr
    assert results(folder)["updates"] > 128
    assert ESCAPE not in done.stderr
    assert any(re.fullmatch(r"update \d+: loss [\d.]+  lr [\d.e-]+  grad norm [\d.]+", line) for line in lines)


def test_sample_data_is_used_if_asked_for(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    done = zygote.run("run", str(spec), "--sample", "--set", "train.updates=2", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "made on the spot: the spec or the command line asks for it." in done.stderr
    folder = tmp_path / "runs" / "spec-sample"
    assert results(folder)["data"] == "sample"
    again = resume(zygote, folder)
    assert again.code == 0, again.stderr
    assert "SAMPLE" in again.stderr


def test_nothing_is_printed_if_asked_for(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    done = zygote.run("run", str(spec), "--quiet", "--out", "run", cwd=tmp_path)
    assert (done.code, done.stdout, done.stderr) == (0, "", "")
    wrong = zygote.run("run", str(spec), "--quiet", "--out", "run", cwd=tmp_path)
    assert wrong.code == 2
    assert "already holds a run" in wrong.stderr
    both = zygote.run("run", str(spec), "--quiet", "--json", cwd=tmp_path)
    assert both.code == 2
    assert "exclude each other" in both.stderr


def test_programs_read_events_from_stdout(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    done = zygote.run("run", str(spec), "--json", "--out", "run", "--set", "train.updates=3", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events[:3]] == ["about", "about", "open"]
    assert [event["event"] for event in events[-2:]] == ["end", "report"]
    written = [line for line in log(tmp_path / "run") if line["event"] in ("update", "evaluate")]
    told = [event for event in events if event["event"] in ("update", "evaluate")]
    assert [{**event, "time": 0} for event in told] == [{**line, "time": 0} for line in written]
    planned = zygote.run("run", str(spec), "--dry", "--json", cwd=tmp_path)
    assert json.loads(planned.stdout)["facts"]["recipe"] == "glue"


def test_a_report_that_fails_does_not_hurt_the_run(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    done = zygote.run("run", str(spec), "--out", "run", "--set", "report.enabled=false", cwd=tmp_path)
    assert done.code == 0
    assert not (tmp_path / "run" / "report.html").exists()
    (tmp_path / "run" / "report.html").mkdir()  # no file can take its place
    again = resume(zygote, tmp_path / "run", "--set", "report.enabled=true")
    assert again.code == 0, again.stderr
    assert "warning: no report was written: UsageError:" in again.stderr
    assert results(tmp_path / "run")["status"] == "finished"


def test_a_terminal_shows_a_progress_bar(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    process = subprocess.Popen([RECIPE, "run", spec, "--out", "run"], cwd=tmp_path, env=environment, stderr=theirs)
    os.close(theirs)
    shown = read_all(ours)
    assert process.wait(60) == 0, shown
    assert ESCAPE in shown
    assert re.search(r"\D9/9\D", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", shown))
    assert "update 1: loss" not in shown  # the bar shows it
    assert "evaluation after update 3" in shown
    assert "Traceback" not in shown


def read_all(terminal: int) -> str:
    """Read until the other side is closed, which Linux reports as an error."""
    content = b""
    while True:
        try:
            part = os.read(terminal, 2**16)
        except OSError:
            part = b""
        if not part:
            os.close(terminal)
            return content.decode()
        content += part


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def start_and_read(zygote: Zygote, pipe: Path, text: str, *arguments: str) -> Started:
    """Start a command, read its messages until `text` comes, and close the pipe, as `head` does."""
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    started = zygote.start(*arguments, cwd=pipe.parent, stderr=pipe)
    content, end = b"", time.monotonic() + 60
    while text.encode() not in content:
        assert time.monotonic() < end, content
        try:
            content += os.read(reading, 2**16)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(reading)
    return started


def test_a_broken_pipe_does_not_hurt_the_run(zygote: Zygote, pipe: Path) -> None:
    spec = write_spec(pipe.parent)
    started = start_and_read(zygote, pipe, "training:", "run", str(spec), "--out", "run")
    assert started.wait() == 0
    assert results(pipe.parent / "run")["status"] == "finished"
    assert len(log(pipe.parent / "run", "update")) == 9


def test_ctrl_c_saves_though_nobody_reads_the_messages(zygote: Zygote, pipe: Path) -> None:
    spec, options = write_spec(pipe.parent), ("--set", "train.updates=200", "--set", "checkpoint.every='end'")
    whole = train(zygote, spec, "whole", *options)
    started = start_and_read(zygote, pipe, "update 2:", "run", str(spec), "--out", "run", *options)
    started.send(signal.SIGINT)
    assert started.wait() == 130
    folder = pipe.parent / "run"
    assert results(folder)["status"] == "stopped"
    assert 2 <= results(folder)["updates"] < 200
    assert resume(zygote, folder).code == 0
    assert bits(zygote, folder) == bits(zygote, whole)
