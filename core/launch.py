"""Many processes on this machine, through torch's elastic launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

GRACE_SECONDS = 600
"""How long processes may take to save when asked to stop; a second signal ends them at once."""


def launched() -> bool:
    """Whether a launcher (ours, torchrun, accelerate) started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `recipe` with `arguments` in several processes; return the exit code they ended with.

    If one dies the others are ended too; if this process dies they follow.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Threads of all processes together should be as many as one process alone would use.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    # Models with parts that a batch doesn't use are ordinary; torch need not advise against allowing for them.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=GRACE_SECONDS,
        signals_to_handle="SIGTERM,SIGINT",
    )
    try:
        elastic_launch(config, sys.executable)("-m", "taskrecipe.core", *arguments)
    except ChildFailedError as error:
        return _exit_code(error)
    except SignalException as interrupted:
        return 128 + int(interrupted.sigval)
    return 0


def follow_parent() -> None:
    """End this process when the one that launched it ends, however that comes about (Linux only)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _exit_code(error: Exception) -> int:
    """The code of the process that failed first; the others were only ended because of it."""
    failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)  # type: ignore[attr-defined]
    codes = [failure.exitcode for failure in failures]
    return next((code for code in codes if code > 0), 1)
