"""Tables of text, csv and tsv: every record of a file becomes a row, or the file is refused with the line at fault.

A csv is read as RFC 4180 says, with quotes around cells that hold separators or line breaks. A tsv has no quoting:
a quote is a letter like any other, as in GLUE's files. `[data].quotes` says otherwise for either. A quote that opens a
cell by mistake takes all up to the next quote for one cell, with the rows between them. Such a file is often valid
still, so a cell is also refused if each of its lines could be a record of its own.
"""

from __future__ import annotations

import csv
import io
import secrets
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.data.cache_entry import ROWS, read_entry, write_entry, write_rows
from taskrecipe.data.cache_folder import find_cache_folder, temporary_folder
from taskrecipe.data.cell_types import cast_chunks, infer_schema, infer_types
from taskrecipe.data.compression import open_bytes
from taskrecipe.data.encodings import find_encoding
from taskrecipe.data.facts import make_key
from taskrecipe.data.file_digest import SMALL_BYTES, digest_files
from taskrecipe.data.read_errors import explain_read_errors
from taskrecipe.errors import DataError
from taskrecipe.system.python_warnings import collect_warnings

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset, IterableDataset

    from taskrecipe.spec.spec import Data

_OTHER_SEPARATORS = (";", "\t", "|")
_SEPARATOR_NAMES = {"\t": "tabs"}
_RECORDS_AT_ONCE = 10_000
_QUOTE = '"'

Record = tuple[int, list[str]]
"""The line on which a record starts, counted from 1, and its cells."""

LooseRecord = tuple[int, list[str], str | None]
"""The line on which a record starts, its cells, and what is wrong with it, if anything is."""

_NOT_TEXT = "holds bytes that are not text in this encoding"
_LONGEST_CELL = 1000
"""Lines that a cell of a loose record has at most. One that goes on longer was opened by a stray quote."""


@dataclass(frozen=True)
class Dialect:
    """How one file is written."""

    encoding: str
    separator: str
    quotes: bool
    header: bool
    lenient: bool = False
    """Whether quotes were asked for, so that cells with line breaks are believed."""


def load_table(paths: list[Path], format: str, split: str, data: Data) -> Dataset:
    """Read all records of the files. Those of large files are written into the cache, and stay on disk."""
    if sum(path.stat().st_size for path in paths) < SMALL_BYTES:
        return _read_table(paths, format, split, data)
    dialect = [data.encoding, data.separator, data.quotes, data.header]
    parts = ["table", [str(path) for path in paths], digest_files(paths), format, split, dialect]
    entry = find_cache_folder() / make_key(parts)
    known = read_entry(entry) or _store_table(entry, _read_texts(paths, format, split, data))
    if known is None:
        return _read_table(paths, format, split, data)
    rows, notes = known
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return rows


def _read_table(paths: list[Path], format: str, split: str, data: Data) -> Dataset:
    """Read all records of the files into memory."""
    import pyarrow as pa
    from datasets import Dataset

    texts = pa.concat_tables(_read_texts(paths, format, split, data))
    # Without a fingerprint, datasets would hash the whole table.
    return Dataset(infer_types(texts), fingerprint=secrets.token_hex(8))


def _store_table(entry: Path, chunks: Iterator[pa.Table]) -> tuple[Dataset, list[str]] | None:
    """Write records and the warnings about them into the cache, and return them; None if they can't be written."""
    try:
        with temporary_folder(entry.parent) as folder:
            with collect_warnings() as notes:
                texts = _write_texts(folder / ROWS, chunks)
            schema = infer_schema(texts)  # known only when the last cell was read, so the rows are written twice
            write_entry(entry, schema, cast_chunks(texts, schema), notes)
    except OSError as error:
        warnings.warn(f"rows are not cached in '{entry.parent}': {error.strerror or error}", stacklevel=2)
    return read_entry(entry)


def _read_texts(paths: list[Path], format: str, split: str, data: Data) -> Iterator[pa.Table]:
    """Yield the records of all files as columns of text, many at a time."""

    first: list[str] | None = None
    for path in paths:
        with explain_read_errors(f"'{path}'", split):
            table = _Table(path, find_dialect(path, format, split, data), split)
            watch = _OddCells(table)
            for chunk in table.read_chunks():
                first = first or chunk.column_names
                if chunk.column_names != first:
                    raise _make_columns_error(first, paths[0], chunk.column_names, path, split)
                watch.look_at(chunk)
                yield chunk
        watch.warn()


def _write_texts(path: Path, chunks: Iterator[pa.Table]) -> pa.Table:
    """Write columns of text into a file, and return them as they lie there."""
    import pyarrow as pa

    first = next(chunks)
    write_rows(path, first.schema, chain([first], chunks))
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


def stream_table(paths: list[Path], format: str, split: str, data: Data) -> IterableDataset:
    """Return a stream of the files' records. They are checked as they are read."""
    from datasets import IterableDataset
    from datasets.iterable_dataset import ArrowExamplesIterable

    tables = [_Table(path, find_dialect(path, format, split, data), split) for path in paths]
    return IterableDataset(ArrowExamplesIterable(_generate_tables, {"tables": tables}))


def find_lines(path: Path, format: str, data: Data) -> Iterator[int]:
    """Yield the line on which each record starts, counted from 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they were given when the file was read
        table = _Table(path, find_dialect(path, format, "", data), "")
        yield from (line for line, _ in table.read_records())


def read_first_records(path: Path, format: str, count: int, data: Data) -> tuple[Dialect, list[str], list[list[str]]]:
    """Return how a file is written, the names of its columns, and the cells of its first records."""
    try:
        table = _Table(path, find_dialect(path, format, "train", data), "train")
        names, records = table.read_names(table.read_records(keep_header=True))
        return table.dialect, names, [cells for _, cells in islice(records, count)]
    except (
        OSError,
        EOFError,
        ValueError,
        csv.Error,
    ) as error:  # as `explain_read_errors`, which needs the package `datasets`
        raise DataError(f"'{path}' can't be read: {error}") from None


def read_loose_records(path: Path, format: str, data: Data) -> Iterator[LooseRecord]:
    """Yield every record of a file, the header included, also those that can't be read, with what is wrong with them.

    After a stray quote, the next line is taken for the next record.
    """
    try:
        dialect = find_dialect(path, format, "", data)
    except DataError:  # lines that are not UTF-8 are bad records
        separator = data.separator or ("\t" if format == "tsv" else ",")
        quotes = format == "csv" if data.quotes is None else data.quotes
        dialect = Dialect("utf-8", separator, quotes, data.header)
    table = _Table(path, dialect, "")
    with _open_lines(path, dialect.encoding, errors="surrogateescape") as lines:
        numbered = _NumberedLines(lines, 0)
        for line in numbered:
            start = numbered.count
            if dialect.quotes and _QUOTE in line:
                yield table.read_loose_record(line, numbered)
            elif not _is_blank(line):
                yield start, table._split_plain(line), None if _is_text(line) else _NOT_TEXT


def _is_text(line: str) -> bool:
    """Whether no byte of a line was outside its encoding: such bytes are kept as surrogates."""
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def find_dialect(path: Path, format: str, split: str, data: Data) -> Dialect:
    """Return how a file is written: what the spec says, else what its format and its first lines show."""
    encoding = find_encoding(path, data.encoding, split)
    quotes = format == "csv" if data.quotes is None else data.quotes
    separator = data.separator or ("\t" if format == "tsv" else _find_separator(path, encoding, split))
    return Dialect(encoding, separator, quotes, data.header, lenient=data.quotes is True)


def _generate_tables(tables: list[_Table]) -> Iterator[tuple[str, pa.Table]]:
    for table in tables:
        for number, chunk in enumerate(table.read_chunks()):
            yield f"{table.path}:{number}", infer_types(chunk)


def _find_separator(path: Path, encoding: str, split: str) -> str:
    """Return a comma, or another separator if the first line has no comma and both first lines have as many of it."""
    with _open_lines(path, encoding) as lines:
        first, second = (line.rstrip("\r\n") for line in islice(chain(lines, ["", ""]), 2))
    counts = {mark: first.count(mark) for mark in _OTHER_SEPARATORS}
    found = max(counts, key=lambda mark: counts[mark])
    if "," in first or not counts[found] or (second and second.count(found) < counts[found]):
        return ","
    name = _SEPARATOR_NAMES.get(found, repr(found))
    toml = "\\t" if found == "\t" else found
    message = f"split {split!r}: '{path}' is separated by {name}, not by commas; [data].separator = \"{toml}\" says so"
    warnings.warn(message, stacklevel=2)
    return found


@contextmanager
def _open_lines(path: Path, encoding: str, errors: str = "strict") -> Iterator[Iterator[str]]:
    """Open a file as lines with their ends. Only a file without any "\n" has "\r" between its lines."""
    with open_bytes(path) as file:
        head = file.read(2**16)
        file.seek(0)
        line_break = "\n" if b"\n" in head or b"\r" not in head else ""
        with io.TextIOWrapper(file, encoding=encoding, errors=errors, newline=line_break) as lines:
            yield lines


class _Table:
    """One file."""

    def __init__(self, path: Path, dialect: Dialect, split: str) -> None:
        self.path, self.dialect, self.split = path, dialect, split

    def read_chunks(self) -> Iterator[pa.Table]:
        """Yield the records as columns of text, many at a time. An empty cell is a missing value."""
        import pyarrow as pa

        records = self.read_records(keep_header=True)
        names, records = self.read_names(records)
        chunk = [cells for _, cells in islice(records, _RECORDS_AT_ONCE)]
        while True:
            columns = zip(*chunk, strict=True) if chunk else [()] * len(names)
            arrays = [pa.array([cell or None for cell in column], pa.string()) for column in columns]
            yield pa.table(arrays, names=names)
            chunk = [cells for _, cells in islice(records, _RECORDS_AT_ONCE)]
            if not chunk:
                return

    def read_records(self, *, keep_header: bool = False) -> Iterator[Record]:
        """Yield every record. Blank lines are none. A record with more or fewer cells than the first is refused."""
        width = 0
        for number, (line, cells) in enumerate(self._split_records()):
            width = width or len(cells)
            if len(cells) != width:
                raise self._make_ragged_error(line, len(cells), width)
            if number or keep_header or not self.dialect.header:
                yield line, cells

    def read_loose_record(self, line: str, following: _NumberedLines) -> LooseRecord:
        """Read a record that has quotes. If it can't be read, it ends with its first line."""
        start, taken = following.count, list[str]()
        ahead = _NumberedLines(_keep(islice(following, _LONGEST_CELL), taken), start)
        try:
            start, cells = self._read_quoted(line, ahead)
            problem = None if _is_text(line + "".join(taken)) else _NOT_TEXT
        except DataError as error:
            following.put_back(taken)
            cells, problem = [], str(error).split(f"line {start}: ", 1)[-1]
        return start, cells, problem

    def _split_records(self) -> Iterator[Record]:
        with _open_lines(self.path, self.dialect.encoding) as lines:
            start = 0
            while block := list(islice(lines, _RECORDS_AT_ONCE)):
                simple = self._split_block(block)
                if simple is not None:
                    yield from enumerate(simple, start + 1)
                    start += len(block)
                else:
                    numbered = _NumberedLines(chain(block, lines), start)
                    yield from self._split_lines(numbered, start + len(block))
                    start = numbered.count

    def _split_block(self, block: list[str]) -> list[list[str]] | None:
        """Return a record for each line; None if any line is not a record. It is the fast way, which most files go."""
        if not self.dialect.quotes:
            return None if any(map(_is_blank, block)) else [self._split_plain(line) for line in block]
        try:
            records = list(csv.reader(block, delimiter=self.dialect.separator, strict=True))
        except csv.Error:
            return None
        return records if len(records) == len(block) and all(records) else None

    def _split_lines(self, lines: _NumberedLines, last: int) -> Iterator[Record]:
        """Yield the records that start up to line `last`, one by one."""
        for line in lines:
            if self.dialect.quotes and _QUOTE in line:
                yield self._read_quoted(line, lines)
            elif not _is_blank(line):
                yield lines.count, self._split_plain(line)
            if lines.count >= last:
                return

    def _split_plain(self, line: str) -> list[str]:
        return line.rstrip("\r\n").split(self.dialect.separator)

    def _read_quoted(self, line: str, following: _NumberedLines) -> Record:
        """Read a record that has quotes, which may go on over several lines."""
        start, lines = following.count, [line]
        try:
            with _large_cells():
                source = chain([line], _keep(following, lines))
                cells = next(csv.reader(source, delimiter=self.dialect.separator, strict=True))
        except csv.Error as error:
            raise self._make_error(start, _explain_quote(str(error), following.count - start)) from None
        if len(lines) > 1 and not self.dialect.lenient and self._could_be_records(lines, len(cells)):
            message = (
                f"a quote opens a cell that goes on to line {following.count}, though each of these lines could be a "
                "row; remove the quote, or set [data].quotes: true if cells hold line breaks, false if quotes are text"
            )
            raise self._make_error(start, message)
        return start, cells

    def _could_be_records(self, lines: list[str], width: int) -> bool:
        return width > 1 and all(line.count(self.dialect.separator) == width - 1 for line in lines)

    def read_names(self, records: Iterator[Record]) -> tuple[list[str], Iterator[Record]]:
        """Return the names of the columns, and the records after the header."""
        first = next(records, None)
        if first is None:
            raise DataError(f"'{self.path}': there are no rows", split=self.split)
        if not self.dialect.header:
            return [str(number) for number in range(len(first[1]))], chain([first], records)
        names = [name or f"Unnamed: {number}" for number, name in enumerate(first[1])]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise self._make_error(first[0], f"the header names the column {twice!r} twice")
        return names, self._require_some(records)

    def _require_some(self, records: Iterator[Record]) -> Iterator[Record]:
        first = next(records, None)
        if first is None:
            raise DataError(f"'{self.path}': there are no rows", split=self.split)
        return chain([first], records)

    def _make_ragged_error(self, line: int, found: int, width: int) -> DataError:
        first = "the header" if self.dialect.header else "the first line"
        hint = "; a cell with a separator in it must be in quotes" if self.dialect.quotes and found > width else ""
        return self._make_error(line, f"has {found} fields, but {first} has {width}{hint}")

    def _make_error(self, line: int, message: str) -> DataError:
        colon = "" if message.startswith("has ") else ":"
        return DataError(f"'{self.path}': line {line}{colon} {message}", split=self.split)


class _OddCells:
    """Looks for cells that are all in quotes although quotes are not read, and for line breaks in a lone column."""

    def __init__(self, table: _Table) -> None:
        self.table = table
        self.quoted: dict[str, bool] = {}
        """For each column that has cells whether all are in quotes so far."""
        self.broken = 0

    def look_at(self, chunk: pa.Table) -> None:
        """Look at some records."""
        import pyarrow.compute as pc

        dialect = self.table.dialect
        for name in [] if dialect.quotes else chunk.column_names:
            texts = chunk[name].drop_null() if self.quoted.get(name, True) else []
            if len(texts):
                quoted = pc.and_(pc.starts_with(texts, _QUOTE), pc.ends_with(texts, _QUOTE))
                self.quoted[name] = pc.all(quoted).as_py()
        if chunk.num_columns == 1 and dialect.quotes and not dialect.lenient:
            self.broken += pc.sum(pc.match_substring(chunk[0], "\n")).as_py() or 0

    def warn(self) -> None:
        """Warn of what was found in the whole file."""
        where = f"split {self.table.split!r}: '{self.table.path}'"
        for name in (name for name, quoted in self.quoted.items() if quoted):
            message = f"all cells of column {name!r} are in quotes, which are kept; [data].quotes = true removes them"
            warnings.warn(f"{where}: {message}", stacklevel=2)
        if self.broken:
            message = f"{self.broken} cells hold line breaks; if that is not meant, a stray quote has taken in rows"
            warnings.warn(f"{where}: {message}", stacklevel=2)


class _NumberedLines:
    """Lines of a file, counted from 1."""

    def __init__(self, lines: Iterator[str], count: int) -> None:
        self.lines, self.count = lines, count

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.count += 1
        return line

    def put_back(self, lines: list[str]) -> None:
        """Let lines that were taken come again."""
        self.lines, self.count = chain(lines, self.lines), self.count - len(lines)


def _is_blank(line: str) -> bool:
    return not line.strip("\r\n")


def _keep(lines: Iterator[str], kept: list[str]) -> Iterator[str]:
    """Yield lines and add them to `kept`."""
    for line in lines:
        kept.append(line)
        yield line


@contextmanager
def _large_cells() -> Iterator[None]:
    """Let Python's csv reader take cells of any size: its limit holds for the whole process."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _explain_quote(message: str, more_lines: int) -> str:
    if "unexpected end of data" in message:
        return "a quote opens a cell and is never closed; double a quote that is text, or set [data].quotes = false"
    if "expected after" in message:
        reach = f", {more_lines} lines on," if more_lines else ""
        fix = "double quotes that are text, or set [data].quotes = false"
        return f"a quote opens a cell, and another{reach} has text after it; {fix}"
    return message


def _make_columns_error(first: list[str], first_path: Path, names: list[str], path: Path, split: str) -> DataError:
    return DataError(
        f"not all files have the same columns: '{first_path}' has {_list_names(first)}, '{path}' has "
        f"{_list_names(names)}",
        split=split,
    )


def _list_names(names: list[str]) -> str:
    return ", ".join(map(repr, names))
