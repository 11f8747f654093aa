"""A run up to its first update: how much processor time it takes, and how much memory of its own."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
import warnings
from pathlib import Path


def read_own_memory() -> int:
    """The bytes that this process holds itself: not pages of mapped files, which the system can drop at any time."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def read_time() -> float:
    """The processor time of this process and of those it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    warnings.simplefilter("ignore")
    from taskrecipe.run.train import train_events
    from taskrecipe.training.events import Updated

    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], read_own_memory())

    threading.Thread(target=watch, daemon=True).start()
    start = time.perf_counter()
    for event in train_events(sys.argv[1], out=sys.argv[2]):
        if isinstance(event, Updated):
            break
    done.set()
    print(json.dumps({"cpu": read_time(), "wall": time.perf_counter() - start, "memory": peak[0]}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
