"""`log.jsonl`: what happened in a run, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taskrecipe.core import durable
from taskrecipe.core.redaction import to_json


class RunLog:
    """A file that grows by whole lines. One process writes it; anyone may read it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line, in one write that other processes see at once."""
        line = to_json(dict(record)).encode(errors="backslashreplace") + b"\n"
        with durable.naming_full_disk(self.path, len(line)):
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                _write_whole(file, line)
            finally:
                os.close(file)

    def read(self) -> Iterator[dict[str, Any]]:
        """Every record; a line that was torn by a crash is passed over."""
        for _, record in self._lines():
            yield record

    def drop_after(self, step: int) -> None:
        """Forget what happened after `step` updates, and any torn line: a resumed run will tell it again."""
        kept = b"".join(line for line, record in self._lines() if record.get("step", 0) <= step)
        if self.path.exists() and self.path.stat().st_size != len(kept):
            durable.replace(self.path, kept)

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if line.endswith(b"\n") and isinstance(record, dict):
                    yield line, record


def _write_whole(file: int, line: bytes) -> None:
    """Write the line or none of it, as far as that can be had."""
    start, written = os.fstat(file).st_size, 0
    try:
        while written < len(line):
            written += os.write(file, line[written:])
    except OSError:
        os.ftruncate(file, start)
        raise
