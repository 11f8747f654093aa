"""What the batch system says about the jobs of runs."""

from __future__ import annotations

import getpass
import subprocess
from functools import cache
from typing import Any, Literal

JobState = Literal["queued", "requeued", "training", "gone", "unknown"]
"""`gone`: the job has ended. `unknown`: there is no batch system here to ask."""

ASK_SECONDS = 10.0

_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED", "STOPPED")
_RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING")


def find_job_state(record: dict[str, Any]) -> JobState:
    """Return the state of the job that a run's record names."""
    job = str(record.get("job"))
    queue = _read_queue()
    if queue is None:
        return "unknown"
    if job not in queue:
        found = _ask_accounting(job)
        return "gone" if found is None else _classify(found, 0)
    return _classify(*queue[job])


def _classify(state: str, restarts: int) -> JobState:
    if state in _WAITING:
        return "requeued" if restarts or state.startswith("REQUEUE") else "queued"
    return "training" if state in _RUNNING else "gone"


@cache
def _read_queue() -> dict[str, tuple[str, int]] | None:
    """Return the state and the number of restarts of each job of this user; None without a batch system.

    It is asked once: a table of many runs is one moment.
    """
    try:
        columns = ["JobID:32", "State:32", "RestartCnt:16"]
        command = [
            "squeue",
            "--noheader",
            "--states=all",
            f"--user={getpass.getuser()}",
            f"--Format={','.join(columns)}",
        ]
        done = _run(command)
    except (OSError, KeyError):
        return None
    if done is None:
        return None
    rows = [line.split() for line in done.splitlines()]
    return {row[0]: (row[1], int(row[2])) for row in rows if len(row) == 3 and row[2].isdigit()}


def _ask_accounting(job: str) -> str | None:
    """Ask for a job that is in the queue no more; None where no accounts are kept."""
    try:
        done = _run(["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State"])
    except OSError:
        return None
    return done.split()[0] if done and done.split() else None


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except subprocess.SubprocessError:
        return None
    return done.stdout if done.returncode == 0 else None
