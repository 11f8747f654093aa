"""Following log.jsonl while another process writes it, here or on a shared disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class LogTail:
    """Reads what a log has gained since the last reading. A resumed run cuts its log: then all of it is read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_id, self._place = 0, 0

    def read_new(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the new records, and whether they replace all that were read before."""
        try:
            with self.path.open("rb") as file:
                stat = self.path.stat()
                was_cut = self._place > 0 and (stat.st_size < self._place or stat.st_ino != self._file_id)
                if was_cut:
                    self._place = 0
                self._file_id = stat.st_ino
                file.seek(self._place)
                return list(self._read_lines(file.read())), was_cut
        except FileNotFoundError:  # training has not begun, or the log is just being replaced
            return [], False

    def _read_lines(self, content: bytes) -> Iterator[dict[str, Any]]:
        """Yield the records of whole lines. A line without its end is read again when it is complete."""
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record
