"""What SLURM tells a task about its job: its number, its nodes, and where the first of them is."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from taskrecipe.errors import UsageError

FIRST_PORT, PORTS = 15_000, 15_000
"""Ports that no system uses for outgoing connections by default."""

_MOST_NAMES = 100_000
"""A list of more host names than this was not written by SLURM."""


@dataclass(frozen=True)
class Step:
    """The place of this process in a job step that srun started with several tasks."""

    rank: int
    tasks: int
    local_rank: int
    local_tasks: int


def find_step() -> Step | None:
    """Return the place of this process among the tasks of srun; None if there is one task, or no srun.

    A batch script has a task's number too, but no step's: what it starts without srun is alone.
    """
    rank, tasks = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS")
    if _number("SLURM_STEP_ID") is None or rank is None or tasks is None or tasks < 2:
        return None
    counts = expand_counts(os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number("SLURM_NODEID") or 0
    return Step(rank, tasks, _number("SLURM_LOCALID") or 0, counts[node] if node < len(counts) else 1)


def describe_job() -> dict[str, object] | None:
    """Return the job that this process belongs to; None outside of SLURM."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    nodes = expand_hosts(os.environ.get("SLURM_JOB_NODELIST", ""))
    return {"system": "slurm", "job": job, "nodes": nodes, "restarts": _number("SLURM_RESTART_COUNT") or 0}


def count_cores() -> int | None:
    """Return how many cores of this node the job has; None outside of SLURM. It need not keep others from use."""
    return _number("SLURM_CPUS_ON_NODE") or None


def choose_port() -> int:
    """Return a port that follows from the job and the step, so that every task finds the same one."""
    job, step = _number("SLURM_JOB_ID") or 0, _number("SLURM_STEP_ID") or 0
    return FIRST_PORT + (job * 17 + step) % PORTS


def find_first_address() -> str:
    """Return the address of the step's first node, where its first task runs."""
    names = expand_hosts(os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", ""))
    if not names:
        raise UsageError("srun started several tasks, but SLURM_STEP_NODELIST names no node: set MASTER_ADDR")
    return _ask_address(names[0]) or names[0]


def _ask_address(node: str) -> str | None:
    """Ask SLURM for the address of a node, whose name need not be the name of a host."""
    try:
        command = ["scontrol", "show", "node", node, "--oneliner"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    return found[1] if found else None


def expand_hosts(text: str) -> list[str]:
    """Return the names in a list of hosts as SLURM writes it: gpu[01-03,7],login is gpu01 gpu02 gpu03 gpu7 login."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        expanded = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else _expand_ranges(ranges)
            expanded = [start + end for start in expanded for end in ends]
            if len(expanded) > _MOST_NAMES:
                return []
        names += expanded
    return names


def _expand_ranges(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (dash and first.isdigit() and last.isdigit() and int(last) - int(first) < _MOST_NAMES):
            found.append(part)
            continue
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def expand_counts(text: str) -> list[int]:
    """Return the numbers in a list of counts as SLURM writes it: 2(x3),1 is 2 2 2 1."""
    found: list[int] = []
    for count, times in re.findall(r"(\d{1,6})(?:\(x(\d{1,6})\))?", text):
        found += [int(count)] * int(times or 1)
    return found


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
