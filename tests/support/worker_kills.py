"""Kill the training processes of a run of two at random moments, and resume it each time."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

RECIPE = Path(sys.executable).with_name("recipe")


def start(*arguments: str, cwd: Path, limit: int | None = None) -> subprocess.Popen[str]:
    """Start the command in a process of its own, with at most `limit` bytes of private memory."""

    def constrain() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    return subprocess.Popen(
        [str(RECIPE), *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=constrain,
    )


def train_undisturbed_and_killed(spec: Path, *options: str, kills: int) -> tuple[Path, Path]:
    """Train twice on two processes, once with a SIGKILL of one of them after the other; return both folders."""
    folder, chance = spec.parent, random.Random(7)
    whole = start("run", str(spec), "--out", "whole", "--processes", "2", *options, cwd=folder)
    assert (whole.communicate(timeout=300), whole.returncode)[1] == 0
    process = start("run", str(spec), "--out", "killed", "--processes", "2", *options, cwd=folder)
    for kill in range(kills):
        workers = _wait_for_workers(process, folder / "killed" / "log.jsonl")
        time.sleep(chance.uniform(0.0, 0.4))
        os.kill(workers[kill % 2], signal.SIGKILL)
        process.communicate(timeout=120)
        assert process.returncode == 4, "a run that has lost a process stops"
        process = start("resume", "killed", cwd=folder)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors
    return folder / "whole", folder / "killed"


def _wait_for_workers(process: subprocess.Popen[str], path: Path) -> list[int]:
    """Return the training processes once they write into the log."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        size = path.stat().st_size if path.exists() else 0
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        found = [int(line) for line in listed.stdout.split()]
        time.sleep(0.1)
        if len(found) == 2 and path.exists() and path.stat().st_size > size > 0:
            return found
    raise TimeoutError(f"no update was logged; the run ended with {process.poll()}")
