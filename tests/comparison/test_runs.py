"""`recipe runs`: what state each run is in, filters and columns by key, and folders that are damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Zygote
from tests.support.evidence import SPEC, write_run
from tests.support.runs import write_spec

from taskrecipe import UsageError, list_runs

FACTS = ("name", "folder", "state", "recipe", "created", "updates", "total_updates", "best", "problems")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs of which one is in the folder of a sweep."""
    monkeypatch.chdir(tmp_path)
    write_numbered(Path("runs/low"), 1, f1=0.6, rate="1e-05")
    write_numbered(Path("runs/high"), 2, f1=0.9, rate="5e-05")
    write_numbered(Path("runs/sweep/trial-3"), 3, f1=0.8, rate="3e-05")
    return Path("runs")


def write_numbered(folder: Path, number: int, f1: float, rate: str, **more: Any) -> None:
    best = {"metric": "f1", "value": f1, "step": number, "metrics": {"f1": f1, "loss": f1 / 2}}
    marker = {"format": 1, "id": f"id{number}", "created": f"2026-01-0{number}T00:00:00+00:00"}
    write_run(folder, SPEC.replace("5e-05", rate), {"best": best, "updates": number, **more}, run=marker)


def names(*arguments: Any, **keywords: Any) -> list[str]:
    return [run.name for run in list_runs(*arguments, **keywords)]


def test_runs_are_listed_from_nested_folders_the_newest_first(runs: Path) -> None:
    assert names() == names("runs") == ["trial-3", "high", "low"]
    assert names("runs/sweep", "runs/low") == ["trial-3", "low"]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("best", ["high", "trial-3", "low"]),
        ("best.f1", ["high", "trial-3", "low"]),
        ("best.loss", ["low", "trial-3", "high"]),
        ("name", ["high", "low", "trial-3"]),
        ("train.learning_rate", ["low", "trial-3", "high"]),
        ("best.step", ["low", "high", "trial-3"]),
    ],
)
def test_the_best_comes_first_whichever_way_is_better(runs: Path, sort: str, expected: list[str]) -> None:
    assert names(sort=sort) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["best.f1>0.8"], ["high"]),
        (["best.f1>=0.8"], ["trial-3", "high"]),
        (["best.f1 < 0.7"], ["low"]),
        (["train.learning_rate=3e-5"], ["trial-3"]),
        (["train.learning_rate!=3e-5"], ["high", "low"]),
        (["train.learning_rate<=3e-5", "best.f1!=0.6"], ["trial-3"]),
        (["name=tr*"], ["trial-3"]),
        (["recipe=glue", "created<2026-01-02"], ["low"]),
        (['task.name="mrpc"', "task.name=mrpc"], ["trial-3", "high", "low"]),
        (["train.ema>0.5"], []),
        (["state=failed"], []),
        (["environment.packages.torch=2.13.0"], ["trial-3", "high", "low"]),
    ],
)
def test_filters_compare_any_key(runs: Path, where: list[str], expected: list[str]) -> None:
    assert names(where=where) == expected


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"where": ["train.learning_rat=1"]}, "key 'train.learning_rat'; did you mean 'train.learning_rate'?"),
        ({"where": ["nothing"]}, "it must be KEY=VALUE"),
        ({"sort": "nothing.at.all"}, "none of the 3 runs has a key 'nothing.at.all'"),
    ],
)
def test_a_wrong_key_or_filter_is_refused_with_what_was_probably_meant(
    runs: Path, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        list_runs(**keywords)
    with pytest.raises(UsageError, match="there is no folder"):
        list_runs("elsewhere")


# States ---------------------------------------------------------------------------------------------


def set_log(folder: Path, *events: dict[str, Any]) -> None:
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


START = {"event": "start", "step": 0, "updates": 90, "best_metric": "f1"}
UPDATE = {"event": "update", "step": 30, "loss": 0.5}
BETTER = {"event": "evaluate", "step": 20, "metrics": {"f1": 0.7, "loss": 0.4}, "best": True}
WORSE = {"event": "evaluate", "step": 30, "metrics": {"f1": 0.6, "loss": 0.5}, "best": False}


def hold(folder: Path, pid: int, host: str | None = None, since: datetime | None = None) -> None:
    since = since or datetime.now().astimezone()
    holder = {"pid": pid, "host": host or socket.gethostname(), "since": since.isoformat()}
    (folder / ".lock-holder.json").write_text(json.dumps(holder))


def test_a_run_of_a_live_process_is_training_and_says_how_far_it_is(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", results={"status": "stopped"})
    set_log(folder, START, BETTER, WORSE, UPDATE)
    hold(folder, os.getpid())
    [run] = list_runs(tmp_path)
    assert (run.state, run.updates, run.total_updates) == ("training", 30, 90)
    assert run.best is not None
    assert (run.best.metric, run.best.value, run.best.step) == ("f1", 0.7, 20)


def test_a_process_that_ended_or_only_has_the_same_number_trains_nothing(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it has ended, but nobody has asked for its exit code
    folder = write_run(tmp_path / "run", results={"status": "stopped"})
    set_log(folder, START, UPDATE)
    for pid, since in ((ended.pid, None), (os.getpid(), datetime(2020, 1, 1).astimezone())):
        hold(folder, pid, since=since)
        [run] = list_runs(tmp_path)
        assert (run.state, run.updates, run.total_updates) == ("interrupted", 30, 90)
    ended.wait()
    hold(folder, ended.pid, host="another-machine")
    assert list_runs(tmp_path)[0].state == "training"


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_a_run_that_ended_has_the_state_of_its_results(tmp_path: Path, status: str) -> None:
    folder = write_run(tmp_path / "run", results={"status": status})
    set_log(folder, START, {"event": "end", "step": 9}, {"event": "warning", "step": 9, "message": "late"})
    assert list_runs(tmp_path)[0].state == status


def test_results_of_an_earlier_part_don_t_hide_that_a_resumed_run_was_killed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", results={"status": "stopped"})
    set_log(folder, START, {"event": "end", "step": 9}, {**START, "step": 9, "resumed_from": 9}, UPDATE)
    [run] = list_runs(tmp_path)
    assert (run.state, run.updates) == ("interrupted", 30)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "run.json is missing": lambda run: ((run / "run.json").unlink(), (run / "checkpoints").mkdir()),
    "run.json can't be read": lambda run: (run / "run.json").write_text('{"id'),
    "run.json has no id": lambda run: (run / "run.json").write_text("{}"),
    "results.json can't be read: it is not a JSON object": lambda run: (run / "results.json").write_text("[]"),
    "results.json can't be read": lambda run: (run / "results.json").write_bytes(b"\xff" * 99),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_a_damaged_run_is_named_and_the_others_are_listed(runs: Path, recipe: Any, problem: str) -> None:
    DAMAGE[problem](runs / "low")
    listed = {run.name: run for run in list_runs()}
    assert listed.keys() == {"low", "high", "trial-3"}
    assert (listed["low"].state, listed["high"].state) == ("damaged", "finished")
    assert problem in listed["low"].problems[0]
    printed = recipe("runs")
    assert printed.code == 0
    assert problem in printed.out


@pytest.mark.parametrize("name", ["spec.toml", "environment.json", "log.jsonl", "results.json", "run.json"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 5000, b"{" * 100_000, b'{"best": 3, "status": [], "rows": 1}\n'])
def test_no_content_of_a_file_raises(runs: Path, recipe: Any, name: str, content: bytes) -> None:
    (runs / "low" / name).write_bytes(content)
    columns = "train.learning_rate,best.f1,best.step,final.f1,rows.train,environment.git.commit,created"
    for arguments in ([], ["--json"], ["--columns", columns], ["--sort", "best"], ["--where", "train.epochs=3"]):
        done = recipe("runs", *arguments)
        assert (done.code, done.err) == (0, "")
        assert "high" in done.out


def test_pipes_and_loops_of_links_are_left_alone(runs: Path) -> None:
    (runs / "low" / "results.json").unlink()
    os.mkfifo(runs / "low" / "results.json")
    (runs / "loop").symlink_to(runs.resolve())
    assert {run.name: run.state for run in list_runs()}["low"] == "interrupted"
    assert len(list_runs()) == 3


# The command ----------------------------------------------------------------------------------------


def test_the_table_is_aligned_and_has_the_columns_that_were_asked_for(runs: Path, recipe: Any) -> None:
    header, first, *_ = recipe("runs").out.splitlines()
    assert header.split() == ["NAME", "STATE", "RECIPE", "BEST", "UPDATES", "CREATED"]
    assert first.split()[:5] == ["sweep/trial-3", "finished", "glue", "f1", "0.8000"]
    chosen = recipe("runs", "--columns", "train.learning_rate,best.f1", "--sort", "best").out.splitlines()
    assert chosen[0].split() == ["NAME", "STATE", "train.learning_rate", "best.f1"]
    assert chosen[1].split() == ["high", "finished", "5e-05", "0.9"]


def test_json_has_every_fact_or_the_columns_that_were_asked_for(runs: Path, recipe: Any) -> None:
    [first, *_] = json.loads(recipe("runs", "--json").out)
    assert tuple(first) == FACTS
    assert first["best"]["metrics"] == {"f1": 0.8, "loss": 0.4}
    chosen = json.loads(recipe("runs", "--json", "--columns", "seed,best.f1", "--where", "name=low").out)
    assert chosen == [{"folder": "runs/low", "seed": 42, "best.f1": 0.6}]


def test_no_runs_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Any) -> None:
    monkeypatch.chdir(tmp_path)
    done = recipe("runs")
    assert (done.code, done.out, done.err) == (0, "", "no runs in runs/\n")
    assert json.loads(recipe("runs", "--json").out) == []


def test_names_from_folders_can_t_change_the_terminal(tmp_path: Path, monkeypatch: Any, recipe: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/a\x1b[2Jb"))
    assert "\x1b" not in recipe("runs").out


def test_a_real_run_goes_from_training_to_interrupted_to_finished(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    slow = ("--set", "train.updates=4000", "--set", "checkpoint.every=5", "--set", "evaluate.every=5")
    started = zygote.start("run", str(spec), "--out", str(tmp_path / "run"), *slow, cwd=tmp_path)
    while not (runs := [run for run in list_runs(tmp_path) if run.updates >= 5 and run.best]):
        assert started.poll() is None, started.stderr
        time.sleep(0.05)
    assert (runs[0].state, runs[0].total_updates, runs[0].recipe) == ("training", 4000, "glue")
    assert runs[0].silent_seconds is not None
    assert runs[0].silent_seconds < 30
    started.send(signal.SIGKILL)
    started.wait()
    assert [run.state for run in list_runs(tmp_path)] == ["interrupted"]
    shutil.rmtree(tmp_path / "run")
    done = zygote.run("run", str(spec), "--out", str(tmp_path / "run"), cwd=tmp_path)
    assert done.code == 0, done.stderr
    [run] = list_runs(tmp_path)
    assert (run.state, run.updates, run.problems) == ("finished", 9, [])
    assert run.best is not None
    assert run.best.metrics["f1"] == run.best.value
