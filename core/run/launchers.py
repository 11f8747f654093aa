"""Recognize what started this process as one of several: `recipe` itself, torchrun, accelerate launch, srun, mpirun.

A launcher leaves the number of each process in environment variables. torchrun and accelerate launch also say where the
processes find each other. For srun this follows from the job: its first node, and a port made of its number.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from taskrecipe.errors import UsageError
from taskrecipe.run import slurm
from taskrecipe.run.environment import usable_cores

Launcher = Literal["recipe", "torchrun", "srun", "mpirun"]

FOLDER = "TASKRECIPE_PROCESSES"
"""The environment variable by which our own launcher names the private folder of its processes."""


@dataclass(frozen=True)
class Seat:
    """The place of this process among those that were started together."""

    launcher: Launcher
    rank: int
    size: int
    local_rank: int = 0
    """Its number among the processes on its machine."""
    local_size: int = 1

    @property
    def has_agent_store(self) -> bool:
        """Whether the launcher itself keeps the store by which processes find each other."""
        return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"

    def environment(self) -> dict[str, str]:
        """Return the variables that torch and Accelerate read."""
        numbers = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size,
        }
        return {name: str(value) for name, value in numbers.items()}

    def find_store(self) -> tuple[str, int]:
        """Return the address and port of the store. It may ask the batch system."""
        address, port = os.environ.get("MASTER_ADDR"), _read_number("MASTER_PORT")
        if self.launcher == "srun":
            return address or slurm.find_first_address(), port or slurm.choose_port()
        if not address or not port:
            raise UsageError(
                f"{self.launcher} started {self.size} processes, but does not say where they find each other: set "
                "MASTER_ADDR to the name of the first machine and MASTER_PORT to a free port there"
            )
        return address, port


def find_seat() -> Seat | None:
    """Return the place of this process among several; None if no launcher started it."""
    rank, size = _read_number("RANK"), _read_number("WORLD_SIZE")
    if rank is not None and size is not None:
        launcher: Launcher = "recipe" if FOLDER in os.environ else "torchrun"
        local = _read_number("LOCAL_RANK"), _read_number("LOCAL_WORLD_SIZE")
        return Seat(launcher, rank, size, local[0] or 0, local[1] or 1)
    if step := slurm.find_step():
        return Seat("srun", step.rank, step.tasks, step.local_rank, step.local_tasks)
    rank, size = _read_number("OMPI_COMM_WORLD_RANK"), _read_number("OMPI_COMM_WORLD_SIZE")
    if rank is not None and size is not None and size > 1:
        local = _read_number("OMPI_COMM_WORLD_LOCAL_RANK"), _read_number("OMPI_COMM_WORLD_LOCAL_SIZE")
        return Seat("mpirun", rank, size, local[0] or 0, local[1] or 1)
    return None


def is_launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return find_seat() is not None


def is_first() -> bool:
    """Whether this process is the one of several that prints; true for a process that is alone."""
    seat = find_seat()
    return seat is None or seat.rank == 0


def prints_for_machine() -> bool:
    """Whether this process prints an error that comes before the processes have found each other."""
    seat = find_seat()
    return seat is None or seat.local_rank == 0


def process_defaults(local_size: int) -> dict[str, str]:
    """Return environment variables for one of several processes on a machine, where the user has set no others."""
    return {
        # All processes together should use as many threads as one process alone.
        "OMP_NUM_THREADS": str(max(1, min(usable_cores(), slurm.count_cores() or usable_cores()) // local_size)),
        # Models with parts that a batch doesn't use are normal; torch need not warn about allowing for them.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def set_process_defaults() -> None:
    """Set the environment variables of a process that a launcher has started. Call it before torch is imported."""
    if seat := find_seat():
        os.environ.update({**process_defaults(seat.local_size), **os.environ})


def name_elastic_launcher() -> str | None:
    """Return a name of the torchrun that started this process and starts it again when one fails; None without one.

    It is the same for every start, and no other torchrun has it.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    import socket

    import psutil

    try:
        started = psutil.Process(os.getppid()).create_time()
    except psutil.Error:
        return None
    return f"{socket.gethostname()}:{os.getppid()}:{started:.2f}"


def _read_number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
