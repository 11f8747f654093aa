"""The rows to predict, read from files one after another. A record that can't be read is kept, with what is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.compression import COMPRESSIONS, open_bytes
from taskrecipe.data.encodings import find_encoding
from taskrecipe.data.file_digest import digest_files
from taskrecipe.data.files import ENDINGS, TABLES, find_files
from taskrecipe.data.image_folders import IMAGE_ENDINGS
from taskrecipe.errors import DataError, UsageError
from taskrecipe.system.python_warnings import collect_warnings

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Data

WINDOW = 1024
"""Rows that are held in memory, sorted by length and written together. It never depends on the batch size."""

STDIN = "-"


@dataclass(frozen=True)
class Record:
    """One row as its file has it, or what is wrong with it."""

    values: dict[str, Any]
    place: str
    """Its file, which record of it, and on which line."""
    folder: str = "."
    """Names of images in the row are relative to it."""
    problem: str | None = None


@dataclass(frozen=True)
class Input:
    """The files that rows are read from, all of one format."""

    paths: list[Path]
    format: str
    data: Data

    @classmethod
    def find(cls, given: str, data: Data) -> Input:
        """Find the files that a path, folder or glob stands for, and how they are read.

        `data` is the run's: what it says about cells and encodings of a csv holds for these files too.
        """
        try:
            paths = [inner for path in find_files("predict", given) for inner in _list_folder(path)]
        except DataError as error:
            raise UsageError(f"{error.message}; it takes files, a folder of images, a glob, or - for stdin") from None
        formats = {_find_format(path) for path in paths}
        if len(formats) > 1:
            raise UsageError(f"{given!r} holds files of several formats: {', '.join(sorted(formats))}; name one kind")
        return cls(paths, formats.pop(), data)

    def __iter__(self) -> Iterator[Record]:
        for path in self.paths:
            yield from self._read(path)

    def _read(self, path: Path) -> Iterator[Record]:
        if self.format in TABLES:
            return _read_table(path, self.data, self.format)
        return _read_text(path, self.data) if self.format == "text" else _READERS[self.format](path)

    def windows(self) -> Iterator[list[Record]]:
        """Yield the records, many at a time."""
        records = iter(self)
        while window := list(islice(records, WINDOW)):
            yield window

    def digest(self) -> list[str]:
        """Return what tells these rows from others: the content of tables, the names and sizes of images."""
        if self.format == "image":
            return [f"{path}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in self.paths]
        return digest_files(self.paths)

    def count(self) -> int | None:
        """Return the number of records where that is known without reading them."""
        if self.format == "image":
            return len(self.paths)
        if self.format == "parquet":
            import pyarrow.parquet as pq

            return sum(int(pq.read_metadata(path).num_rows) for path in self.paths)
        return None


def read_stdin() -> Iterator[list[Record]]:
    """Yield the lines that have come so far as one window, as soon as no further line is there to be read."""
    number, rest, descriptor = 0, b"", sys.stdin.fileno()
    while chunk := os.read(descriptor, 2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        records = []
        for line in lines:
            number += 1
            if line.strip():
                records.append(_parse_line(line, f"stdin line {number}", "."))
        yield from _cut(records, WINDOW)
    if rest.strip():
        yield [_parse_line(rest, f"stdin line {number + 1}", ".")]


def as_records(rows: Iterable[Any]) -> Iterator[Record]:
    """Yield rows that are in memory, as dictionaries, as records."""
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            yield Record(row, f"row {number}")
        else:
            yield Record({}, f"row {number}", problem=f"a row is a dictionary of its columns; found {row!r:.80}")


def _cut(records: list[Record], size: int) -> Iterator[list[Record]]:
    for start in range(0, len(records), size):
        yield records[start : start + size]


def _list_folder(path: Path) -> list[Path]:
    """Return the images in a folder and below, in a fixed order; a file as it is."""
    if not path.is_dir():
        return [path]
    inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_ENDINGS and file.is_file())
    if not inside:
        raise UsageError(f"there are no images in '{path}'; to predict rows of tables, name the files")
    return inside


def _find_format(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    ending = suffixes[-1] if suffixes else ""
    if ending in IMAGE_ENDINGS:
        return "image"
    format = ENDINGS.get(ending)
    if format not in (*TABLES, "text", *_READERS):
        known = ".csv, .tsv, .jsonl, .parquet, .txt and images"
        raise UsageError(f"'{path}' can't be read: its ending is none of {known}")
    return str(format)


# Formats -------------------------------------------------------------------------------------------------


def _read_table(path: Path, data: Data, format: str) -> Iterator[Record]:
    from taskrecipe.data.tables import read_loose_records

    names: list[str] | None = None
    with collect_warnings():  # they advise keys of a spec, which a file to predict has none of
        records = iter(read_loose_records(path, format, data))
        first = next(records, None)
    if first is None:
        raise DataError(f"'{path}': there are no rows")
    if data.header:
        names = [name or f"Unnamed: {number}" for number, name in enumerate(first[1])]
    else:
        names, records = [str(number) for number in range(len(first[1]))], _put_back(first, records)
    for number, (line, cells, problem) in enumerate(records, 1):
        place = f"'{path}' record {number} (line {line})"
        if problem is None and len(cells) != len(names):
            problem = f"has {len(cells)} fields, but the {'header' if data.header else 'first line'} has {len(names)}"
        values = {name: cell or None for name, cell in zip(names, cells, strict=False)}
        yield Record(values, place, str(path.parent), problem)


def _put_back(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _read_json(path: Path) -> Iterator[Record]:
    with open_bytes(path) as file:
        if file.read(2**10).lstrip().startswith(b"["):
            yield from _read_json_list(path)
            return
        file.seek(0)
        number = 0
        for line_number, line in enumerate(file, 1):
            if line.strip():
                number += 1
                yield _parse_line(line, f"'{path}' record {number} (line {line_number})", str(path.parent))


def _read_json_list(path: Path) -> Iterator[Record]:
    try:
        with open_bytes(path) as file:
            rows = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is not JSON: {error}") from None
    for number, row in enumerate(rows, 1):
        place, problem = f"'{path}' record {number}", None if isinstance(row, dict) else "is not an object"
        yield Record(row if isinstance(row, dict) else {}, place, str(path.parent), problem)


def _parse_line(line: bytes, place: str, folder: str) -> Record:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Record({}, place, folder, f"is not UTF-8 (byte {line[error.start]:#04x} at {error.start + 1})")
    except (ValueError, RecursionError) as error:
        return Record({}, place, folder, f"is not JSON: {error}")
    return Record(row, place, folder) if isinstance(row, dict) else Record({}, place, folder, "is not an object")


def _read_text(path: Path, data: Data) -> Iterator[Record]:
    encoding = data.encoding or _guess_encoding(path)
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            place = f"'{path}' line {number}"
            try:
                yield Record({"text": line.decode(encoding).rstrip("\r\n")}, place, str(path.parent))
            except UnicodeDecodeError:
                yield Record({}, place, str(path.parent), f"is not {encoding.upper()}")


def _guess_encoding(path: Path) -> str:
    with collect_warnings():
        try:
            return find_encoding(path, None, "predict")
        except DataError:
            return "utf-8"  # lines that are not are bad rows


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(WINDOW):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(row, f"'{path}' record {number}", str(path.parent))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"'{path}' can't be read after record {number}: {error}") from None


def _read_image(path: Path) -> Iterator[Record]:
    yield Record({"image": str(path)}, f"'{path}'", "")


_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    "jsonl": _read_json,
    "parquet": _read_parquet,
    "image": _read_image,
}
"""Formats that need no settings."""
