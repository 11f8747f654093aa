"""Processes that another launcher started, on machines of their own: joined, with one console, and ended together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from tests.support.commands import Zygote
from tests.support.machines import free_port, kill, launch, wait_for_all, wait_for_update
from tests.support.runs import GLUE, bits, log, results, train, write_spec

LONG = GLUE.replace("updates = 9", "updates = 100000").replace("every = 3", "every = 100000")


def errors_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("error")]


def test_processes_of_another_launcher_train_as_those_of_ours(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    local = train(zygote, spec, "local", "--processes", "2")
    ended = wait_for_all(launch(zygote, tmp_path, "run", str(spec), "--out", "run"))
    assert ended.codes == [0, 0], ended.errors
    assert bits(zygote, tmp_path / "run") == bits(zygote, local)
    assert ended.errors[0].count("finished after update 9") == 1
    # The processes of these tests have imported torch before their variables were set, so it warns.
    assert all(line.startswith("[rank1]") for line in ended.errors[1].splitlines()), "one console"
    assert "network" not in ended.errors[0], "on one machine there is nothing to trust"
    assert results(tmp_path / "run")["processes"] == 2


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_lost_machine_ends_the_others_with_a_sentence(lost: int, zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, LONG)
    started = launch(zygote, tmp_path, "run", str(spec), "--out", "run", "--set", "train.batch_size=9", processes=3)
    wait_for_update(tmp_path / "run", started)
    kill(started[lost])
    ended = wait_for_all(started)
    others = [rank for rank in range(3) if rank != lost]
    assert [ended.codes[rank] for rank in others] == [4, 4], ended.errors
    told = [line for rank in others for line in errors_of(ended.errors[rank])]
    assert not any("Traceback" in text or "gloo" in text for text in ended.errors)
    assert results(tmp_path / "run")["status"] == "failed"
    if lost:
        assert len(told) == 1
        assert f"process 2 of 3 on {os.uname().nodename} (process id {started[1].pid}) gave no sign" in told[0]
        assert results(tmp_path / "run")["error"] in told[0]
    else:  # it kept the store too, so that the others can't agree on who speaks: one on each machine does
        assert len(told) == 2
        assert all("the connection to 127.0.0.1, where the processes meet, was lost" in line for line in told)


def test_a_process_that_hangs_is_named_with_its_machine(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, LONG)
    started = launch(zygote, tmp_path, "run", str(spec), "--out", "run", "--set", "launch.timeout=8")
    wait_for_update(tmp_path / "run", started)
    os.kill(started[1].pid, signal.SIGSTOP)
    try:
        assert started[0].wait(60) == 4, started[0].stderr
    finally:
        kill(started[1])
    [told] = errors_of(started[0].stderr)
    assert f"process 2 of 2 on {os.uname().nodename} (process id {started[1].pid}) sent no heartbeat" in told
    assert results(tmp_path / "run")["status"] == "failed"


def test_an_error_of_one_process_is_printed_once(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    ended = wait_for_all(launch(zygote, tmp_path, "run", str(spec), "--out", "run"))
    assert ended.codes == [2, 2], ended.errors
    assert len(errors_of("\n".join(ended.errors))) == 1
    assert "is not empty and not a run" in ended.errors[0]


def test_a_signal_to_one_process_saves_in_all(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, LONG)
    started = launch(zygote, tmp_path, "run", str(spec), "--out", "run")
    wait_for_update(tmp_path / "run", started)
    addresses = {
        listening.laddr.ip
        for process in started
        for listening in psutil.Process(process.pid).net_connections("inet")
        if listening.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}, "on one machine, nothing listens beyond it"
    started[1].send(signal.SIGUSR1)
    ended = wait_for_all(started)
    assert ended.codes == [138, 138], ended.errors
    assert results(tmp_path / "run")["status"] == "stopped"
    assert len(errors_of("\n".join(ended.errors))) == 1
    assert log(tmp_path / "run")[-1]["event"] == "end"


def test_a_folder_that_is_not_shared_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    """Both write to the same path, but the second process has another file system there."""
    spec = write_spec(tmp_path)
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(free_port())
    (tmp_path / "runs").mkdir()
    first = zygote.start("run", str(spec), cwd=tmp_path, RANK="0", **shared)
    elsewhere = {"mount": str(tmp_path / "runs")}
    second = zygote.start("run", str(spec), cwd=tmp_path, constraints=elsewhere, RANK="1", **shared)
    ended = wait_for_all([first, second], 120)
    assert ended.codes == [2, 2], ended.errors
    assert "is not shared: " in ended.errors[0]
    assert list((tmp_path / "runs").iterdir()) == []


def test_processes_that_never_come_are_named(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    alone = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = zygote.run("run", str(spec), "--set", "launch.timeout=2", cwd=tmp_path, RANK="0", LOCAL_RANK="0", **alone)
    assert done.code == 4
    [told] = errors_of(done.stderr)
    assert "3 processes were to train together" in told
    assert "no sign of process 2, 3" in told
