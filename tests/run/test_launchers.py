"""Other launchers: a process that one of them started is one of several of the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.support.machines import free_port
from tests.support.runs import GLUE, write_spec

SPEC = Path(__file__).parents[2] / "specs" / "mrpc.toml"
SAMPLE = ["-m", "taskrecipe", "run", str(SPEC), "--sample", "--set", "train.updates=4", "--out", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def start(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def require_finished_run(folder: Path) -> None:
    results = json.loads((folder / "run" / "results.json").read_text())
    assert (results["status"], results["updates"], results["processes"]) == ("finished", 4, 2)
    assert [path.name for path in folder.iterdir()] == ["run"]


def test_two_torchruns_start_the_processes_of_one_run(tmp_path: Path) -> None:
    """As on two machines, but on this one."""
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    started = [start([*TORCHRUN, *meeting, *SAMPLE], tmp_path) for _ in range(2)]
    printed = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    require_finished_run(tmp_path)
    assert "".join(printed).count("finished after update 4") == 1, "one console"


@pytest.mark.chaos
@pytest.mark.parametrize(
    "launcher",
    [
        [*TORCHRUN, "--standalone", "--nproc-per-node=2"],
        [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"],
    ],
    ids=["torchrun", "accelerate"],
)
def test_a_launcher_starts_the_processes_of_one_run(launcher: list[str], tmp_path: Path) -> None:
    process = start([*launcher, *SAMPLE], tmp_path)
    printed = process.communicate(timeout=240)[1]
    assert process.returncode == 0, printed[-3000:]
    require_finished_run(tmp_path)


@pytest.mark.chaos
def test_torchrun_restarts_a_run_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """With torchrun's own settings, and on both of its nodes: nothing waits for a port of the first start."""
    text = GLUE.replace("updates = 9", "updates = 60").replace("every = 3", "every = 60")
    spec = write_spec(tmp_path, text)
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d"]
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    command = [*TORCHRUN, *meeting, endpoint, "-m", "taskrecipe", "run", str(spec), "--out", "run"]
    started = [start(command, tmp_path) for _ in range(2)]
    log, end = tmp_path / "run" / "log.jsonl", time.monotonic() + 240
    while not log.exists() or '"event": "update", "step": 5,' not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    [victim] = [one for one in psutil.Process(started[1].pid).children() if "taskrecipe" in one.cmdline()]
    victim.kill()
    printed = [process.communicate(timeout=400)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["status"], results["updates"]) == ("finished", 60)
    resumed = [json.loads(line).get("resumed_from") for line in log.read_text().splitlines() if '"start"' in line]
    assert resumed[-1] >= 4, "it went on where it was"
    assert not (tmp_path / "runs").exists()
