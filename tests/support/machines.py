"""Processes of one run as another launcher starts them: each on its own, with the variables that torchrun sets."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import Started, Zygote

LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(zygote: Zygote, cwd: Path, *arguments: str, processes: int = 2, **env: str) -> list[Started]:
    """Start the processes of one run as a launcher with a machine for each would."""
    shared = {"WORLD_SIZE": str(processes), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        zygote.start(*arguments, cwd=cwd, **{**shared, "RANK": str(rank), **env}) for rank in reversed(range(processes))
    ][::-1]


def wait_for_update(folder: Path, started: list[Started], step: int = 1) -> None:
    """Return once a run has logged an update."""
    wait_for_log(folder, started, f'"event": "update", "step": {step},')


def wait_for_log(folder: Path, started: list[Started], text: str) -> None:
    end, log = time.monotonic() + 120, folder / "log.jsonl"
    while not log.exists() or text not in log.read_text():
        assert all(process.poll() is None for process in started), [process.stderr for process in started]
        assert time.monotonic() < end, [process.stderr for process in started]
        time.sleep(0.05)


def kill(process: Started) -> None:
    os.kill(process.pid, signal.SIGKILL)


@dataclass
class Ended:
    """How the processes of a run ended."""

    codes: list[int]
    errors: list[str]
    """What each has printed, without the lines of a run that goes well."""


def wait_for_all(started: list[Started], timeout: float = 60.0) -> Ended:
    codes = [process.wait(timeout) for process in started]
    return Ended(codes, [process.stderr for process in started])
