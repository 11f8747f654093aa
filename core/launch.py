"""Many processes on this machine, through torch's elastic launcher: started and ended together, with one voice."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from taskrecipe.core.errors import RunStopped

GRACE_SECONDS = 600
"""How long processes may take to save when asked to stop; a second signal ends them at once."""

REPORTS = "TASKRECIPE_REPORTS"
"""The environment's name for the folder in which processes leave word of what ended them."""


def launched() -> bool:
    """Whether a launcher (ours, torchrun, accelerate) started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `recipe` with `arguments` in several processes; return the exit code they ended with.

    If one dies the others are ended too; if this process dies they follow. Of what they have to say about it, only
    the first word is told: the rest follows from that.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Threads of all processes together should be as many as one process alone would use.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=GRACE_SECONDS,
        signals_to_handle="SIGTERM,SIGINT",
    )
    logging.disable()  # the launcher's own words, such as that it sends a signal on
    with TemporaryDirectory() as reports:
        os.environ[REPORTS] = reports
        try:
            elastic_launch(config, sys.executable)("-m", "taskrecipe.core", *arguments)
        except ChildFailedError as error:
            _name_killed({rank: failure.exitcode for rank, failure in error.failures.items()}, processes)
            silent = error.get_first_failure()[1].exitcode  # of one that ended before it could say why
            return _tell_first(Path(reports)) or (silent if silent > 0 else 128 - silent)
        except SignalException as interrupted:
            _tell_first(Path(reports))
            return 128 + int(interrupted.sigval)
    return 0


def join() -> None:
    """Be one of several processes, before torch is imported: end when the launcher does, however that comes about."""
    # Models with parts that a batch doesn't use are ordinary; torch need not advise against allowing for them.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def report(message: str, code: int) -> bool:
    """Leave word for our launcher of what ends this process; False if it was not started by one."""
    folder = os.environ.get(REPORTS)
    if folder is None or not launched():
        return False
    name = f"{time.time_ns()}-{os.environ['RANK']}.json"
    (Path(folder) / name).write_text(json.dumps({"message": message, "code": code}))
    return True


def _tell_first(reports: Path) -> int:
    """Print what the process said that ended first, and return its exit code; 0 where none has said anything."""
    first = min(reports.iterdir(), key=lambda path: int(path.name.split("-")[0]), default=None)
    if first is None:
        return 0
    said = json.loads(first.read_text())
    print(said["message"].rstrip("\n"), file=sys.stderr)
    return int(said["code"])


def _name_killed(codes: dict[int, int], processes: int) -> None:
    """Raise if a process was killed, which had no time to say so; the others' words are only about its absence."""
    for rank, code in codes.items():
        if code < 0 and code != -signal.SIGTERM:  # by which the launcher ends the rest
            raise RunStopped(
                f"process {rank + 1} of {processes} was ended by {signal.Signals(-code).name}, and the others with it: "
                "if that was for want of memory, more [train].accumulate needs less. What was saved stays; "
                "`recipe resume` goes on from there"
            )
