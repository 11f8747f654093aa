"""Where a row comes from: its file, which record of it, and on which line. Found only when it is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from taskrecipe.data.compression import open_bytes
from taskrecipe.data.tables import find_lines
from taskrecipe.errors import DataError
from taskrecipe.remote.downloads import find_url

if TYPE_CHECKING:
    import numpy as np

    from taskrecipe.spec.spec import Data


class Place:
    """Finds the rows of a split in what they were read from. This one knows nothing but their numbers."""

    def __call__(self, row: int) -> str:
        """Return where a row comes from, for an error message."""
        return f"row {row} of the data"

    def sources(self, folder: Path) -> list[str | None]:
        """Return where each row comes from, with files relative to `folder`; an empty list if that is not known."""
        return []


@dataclass(frozen=True)
class FilePlace(Place):
    """Finds rows in the files that all of them were read from, in order."""

    paths: Sequence[Path]
    format: str
    data: Data

    def __call__(self, row: int) -> str:
        """Name the file, the record and its line."""
        for path in self.paths:
            count = 0
            for count, line in enumerate(_find_records(path, self.format, self.data), 1):
                if count > row:
                    return _name_record(f"'{find_url(path) or path}'", count, line)
            row -= count
        return f"row {row}"

    @override
    def sources(self, folder: Path) -> list[str | None]:
        names = {path: _relative(path, folder) for path in self.paths}
        return [
            _name_record(names[path], count, line)
            for path in self.paths
            for count, line in enumerate(_find_records(path, self.format, self.data), 1)
        ]


@dataclass(frozen=True)
class ImagePlace(Place):
    """Names the image of each row."""

    rows: Any

    def __call__(self, row: int) -> str:
        """Name the image's file."""
        path = self._paths([row])[0]
        return f"row {row} ('{(find_url(Path(path)) if path else None) or path}')"

    @override
    def sources(self, folder: Path) -> list[str | None]:
        return [_relative(Path(path), folder) if path else None for path in self._paths(range(len(self.rows)))]

    def _paths(self, rows: Iterable[int]) -> list[str | None]:
        from taskrecipe.data.images import keep_encoded

        images = keep_encoded(self.rows.select_columns("image"))
        return [(images[row]["image"] or {}).get("path") for row in rows]


@dataclass(frozen=True)
class SelectedPlace(Place):
    """Finds rows among those that were chosen by number."""

    chosen: np.ndarray
    place: Place

    def __call__(self, row: int) -> str:
        """Say where the chosen row comes from."""
        return self.place(int(self.chosen[row]))

    @override
    def sources(self, folder: Path) -> list[str | None]:
        whole = self.place.sources(folder)
        return [whole[number] for number in self.chosen] if whole else []


def _name_record(file: str, record: int, line: int | None) -> str:
    return f"{file} record {record}" + (f" (line {line})" if line else "")


def _relative(path: Path, folder: Path) -> str:
    """Return the URL that a file was downloaded from, or its path from `folder`."""
    return find_url(path) or Path(os.path.relpath(path, folder)).as_posix()


def add_place(error: DataError, places: dict[str, Place]) -> DataError:
    """Return the error with the place of its row, if that can be found."""
    place = places.get(error.split or "")
    if error.row is None or error.place is not None or place is None:
        return error
    try:
        found = place(error.row)
    except (DataError, OSError, ValueError, IndexError):  # a file that has changed meanwhile
        return error
    return DataError(error.message, split=error.split, row=error.row, column=error.column, place=found)


def _find_records(path: Path, format: str, data: Data) -> Iterator[int | None]:
    """Yield the line of each record, or None for each where a format has no lines."""
    if format in ("csv", "tsv"):
        yield from find_lines(path, format, data)
    elif format == "parquet":
        import pyarrow.parquet as pq

        yield from [None] * pq.read_metadata(path).num_rows
    elif format == "text":
        with open_bytes(path) as file:
            yield from (number for number, _ in enumerate(file, 1))
    elif format == "jsonl":
        yield from _find_json_records(path)


def _find_json_records(path: Path) -> Iterator[int | None]:
    with open_bytes(path) as file:
        if file.read(2**10).lstrip().startswith(b"["):
            file.seek(0)
            yield from [None] * len(json.loads(file.read()))
            return
        file.seek(0)
        yield from (number for number, line in enumerate(file, 1) if line.strip())
