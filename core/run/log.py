"""`log.jsonl`: the events of a run, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taskrecipe.system import atomic_files
from taskrecipe.system.secrets import to_json


class RunLog:
    """A file that grows by whole lines. One process writes it; any process may read it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line in one write. Other processes see it at once."""
        line = to_json(dict(record)).encode(errors="backslashreplace") + b"\n"
        with atomic_files.explain_full_disk(self.path, len(line)):
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                _write_line(file, line)
            finally:
                os.close(file)

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield every record. Damaged lines are skipped; `count_damaged` says how many there are."""
        for _, record in self._read_lines():
            if record is not None:
                yield record

    def count_damaged(self) -> int:
        """Count the lines that can't be read, such as one that a crash cut short."""
        return sum(record is None for _, record in self._read_lines())

    def drop_after(self, step: int) -> int:
        """Remove the records after update `step` and all damaged lines; return how many lines were damaged.

        A resumed run writes those records again. The log is copied line by line: it may not fit in memory.
        """
        dropped, damaged = 0, 0

        def kept_lines() -> Iterator[bytes]:
            nonlocal dropped, damaged
            for line, record in self._read_lines():
                if record is not None and _step(record) <= step:
                    yield line
                else:
                    dropped, damaged = dropped + 1, damaged + (record is None)

        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with atomic_files.explain_full_disk(self.path), atomic_files.remove_on_failure(temporary):
            atomic_files.remove(temporary)  # left by a process that was killed here
            atomic_files.write_new(temporary, kept_lines())
            self._take_over(temporary, dropped)
        return damaged

    def _take_over(self, temporary: Path, dropped: int) -> None:
        """Replace the log by `temporary`, if lines were dropped."""
        if not dropped:
            temporary.unlink()
            return
        atomic_files.sync(temporary)
        temporary.replace(self.path)
        atomic_files.sync(self.path.parent)

    def _read_lines(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Yield every line with its record, which is None where the line is damaged."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                yield line, _parse_line(line)


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Read one line; a line without its end may have been cut short."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if line.endswith(b"\n") and isinstance(record, dict) else None


def _step(record: Mapping[str, Any]) -> float:
    step = record.get("step", 0)
    return step if isinstance(step, int | float) else 0


def _write_line(file: int, line: bytes) -> None:
    """Write the whole line, or nothing where an error comes in between."""
    start, written = os.fstat(file).st_size, 0
    try:
        while written < len(line):
            written += os.write(file, line[written:])
    except OSError:
        os.ftruncate(file, start)
        raise
