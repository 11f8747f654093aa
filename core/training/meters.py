"""How fast a run goes, what it waits for, and what memory it takes."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


class Meters:
    """Counts since the last reading; evaluation and saving are left out of the time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.restart()

    def restart(self) -> None:
        """Begin anew, so that what was not training is not counted as such."""
        self.start = time.perf_counter()
        self.waited, self.rows = 0.0, 0

    def timed(self, source: Iterator[T]) -> T:
        """The next of `source`; waiting for it is waiting for data."""
        start = time.perf_counter()
        item = next(source)
        self.waited += time.perf_counter() - start
        return item

    def count(self, rows: int) -> None:
        """Note that rows were trained on."""
        self.rows += rows

    def read(self) -> dict[str, float]:
        """The numbers since the last reading."""
        elapsed = max(time.perf_counter() - self.start, 1e-9)
        numbers = {
            "rows_per_second": round(self.rows / elapsed, 3),
            "data_wait": round(self.waited / elapsed, 4),
            "memory_mb": round(self._memory() / 2**20, 1),
        }
        self.restart()
        return numbers

    def _memory(self) -> int:
        if self.device.type == "cpu":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(torch.accelerator.max_memory_allocated())
