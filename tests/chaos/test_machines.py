"""Two machines joined by torchrun: they train as two processes of one machine do, and notice when one is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.commands import Zygote
from tests.support.namespaces import Machine, two_machines, why_not
from tests.support.runs import GLUE, bits, results, train, write_spec

pytestmark = pytest.mark.chaos

LONG = GLUE.replace("updates = 9", "updates = 100000").replace("every = 3", "every = 100000")


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    if reason := why_not():
        pytest.skip(reason)
    with two_machines() as made:
        yield made


def start(machines: list[Machine], spec: Path, *options: str) -> list[subprocess.Popen[str]]:
    """Start `recipe run` by a torchrun on each machine."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={machines[0].address}:29400", "--rdzv-id=test"]
    command = ["-m", "taskrecipe", "run", str(spec), "--out", "run", *options]
    return [
        subprocess.Popen(
            machine.command(
                sys.executable,
                *["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meeting, *command],
            ),
            cwd=spec.parent,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for machine in machines
    ]


def wait(started: list[subprocess.Popen[str]]) -> list[str]:
    """Wait for all, and return what each has printed."""
    try:
        return [process.communicate(timeout=400)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def is_running(process: psutil.Process) -> bool:
    """Whether a process has not ended; its torchrun may be too busy to notice that."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_two_machines_train_as_two_processes_of_one(machines: list[Machine], zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    local = train(zygote, spec, "local", "--processes", "2")
    started = start(machines, spec)
    printed = wait(started)
    assert [process.returncode for process in started] == [0, 0], printed
    assert bits(zygote, tmp_path / "run") == bits(zygote, local)
    both = "".join(printed)
    assert both.count("finished after update 9") == 1, "one console"
    assert "2 machines (" in both
    assert "without password or encryption, so the network must be trusted" in both


def test_a_machine_behind_a_cut_cable_is_named(machines: list[Machine], tmp_path: Path) -> None:
    spec = write_spec(tmp_path, LONG)
    started = start(machines, spec, "--set", "launch.timeout=15")
    log, end = tmp_path / "run" / "log.jsonl", time.monotonic() + 300
    while not log.exists() or '"update"' not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
    workers = [child for one in started for child in psutil.Process(one.pid).children(recursive=True)]
    machines[1].cut_cable()
    try:
        printed = started[0].communicate(timeout=400)[1]  # the torchrun there keeps the store
        end = time.monotonic() + 120
        while any(is_running(worker) for worker in workers):
            assert time.monotonic() < end, "nobody waits for a machine that is gone"
            time.sleep(0.5)
    finally:
        for process in started:  # the other torchrun waits for its own store longer than this test does
            process.kill()
            process.communicate()
    [told] = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "of 2 on west (process id" in told
    assert "Traceback" not in printed.partition("error: ")[0]
    assert results(tmp_path / "run")["status"] == "failed"
