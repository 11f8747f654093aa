"""How fast a run trains, how long it waits for data, and how much memory it uses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

import psutil
import torch

T = TypeVar("T")


class Throughput:
    """Counts since the last reading. Time spent on evaluating and saving is not counted."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak_bytes = 0
        self._process = psutil.Process()
        self.restart()

    def restart(self) -> None:
        """Start counting from zero. Call it after work that is not training."""
        self.start = time.perf_counter()
        self.waited, self.rows, self.tokens = 0.0, 0, 0

    def time_next(self, source: Iterator[T]) -> T:
        """Return the next item of `source`, and count the time it takes as waiting for data."""
        start = time.perf_counter()
        item = next(source)
        self.waited += time.perf_counter() - start
        return item

    def count(self, rows: int, tokens: int = 0) -> None:
        """Add to the number of rows and tokens trained on."""
        self.rows += rows
        self.tokens += tokens

    def read(self) -> dict[str, float]:
        """Return the numbers since the last reading, and start counting from zero."""
        elapsed = max(time.perf_counter() - self.start, 1e-9)
        numbers = {
            "rows_per_second": round(self.rows / elapsed, 3),
            "data_wait": round(self.waited / elapsed, 4),
            "memory_mb": round(self._memory() / 2**20, 1),
        }
        if self.tokens:
            numbers["tokens_per_second"] = round(self.tokens / elapsed, 1)
        self.restart()
        return numbers

    def _memory(self) -> int:
        """Return the peak in bytes: the device's own, or the largest resident memory seen at a reading."""
        if self.device.type != "cpu":
            return int(torch.accelerator.max_memory_allocated())
        memory = self._process.memory_info()
        self.peak_bytes = max(self.peak_bytes, getattr(memory, "peak_wset", memory.rss))
        return self.peak_bytes
