"""What the first records of a table show: its columns, and the kind of values in each. It imports nothing heavy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from taskrecipe.data.compression import open_bytes
from taskrecipe.data.tables import read_first_records
from taskrecipe.errors import DataError
from taskrecipe.spec.spec import Data
from taskrecipe.system.python_warnings import collect_warnings

RECORDS = 10_000
"""Records that are read to guess from."""

MOST_CLASSES = 200
"""A column with more different values holds no classes."""

Kind = Literal["text", "class", "number", "list", "table", "name", "empty"]
"""class: few different values; name: short and different in most rows, such as an id or the name of a file."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column by the values in the first records."""

    name: str
    values: list[Any]

    @cached_property
    def given(self) -> list[Any]:
        """The values that are not missing."""
        return [value for value in self.values if value is not None and value != ""]

    @cached_property
    def classes(self) -> Counter[str]:
        """How often each value occurs."""
        return Counter(str(value) for value in self.given)

    @cached_property
    def words(self) -> list[int]:
        """The number of words of each value, from the shortest."""
        return sorted(len(str(value).split()) for value in self.given)

    @cached_property
    def kind(self) -> Kind:
        """What the values are."""
        if not self.given:
            return "empty"
        if any(isinstance(value, (list, dict)) for value in self.given):
            return "list" if isinstance(self.given[0], list) else "table"
        if self.is_few:
            return "class"
        if all(map(_is_number, self.given)):
            whole = all(float(value).is_integer() for value in self.given)
            return "name" if whole and len(self.classes) == len(self.given) else "number"
        return "text" if sum(self.words) >= 2 * len(self.words) else "name"

    @property
    def is_few(self) -> bool:
        """Whether the values are few enough to be classes: each occurs several times, and none is a sentence."""
        few = len(self.classes) <= min(MOST_CLASSES, max(2, len(self.given) // 3))
        fractions = all(map(_is_number, self.given)) and not all(float(value).is_integer() for value in self.given)
        return few and not fractions and self.words[-1] <= 5

    def list_classes(self) -> str:
        """List the most frequent classes for a comment."""
        names = [name for name, _ in self.classes.most_common(6)]
        return ", ".join(names) + (f", … ({len(self.classes)} in all)" if len(self.classes) > 6 else "")

    def longest_words(self, share: float = 0.99) -> int:
        """Return how many words most values have at most."""
        return self.words[min(int(share * len(self.words)), len(self.words) - 1)] if self.words else 0


@dataclass(frozen=True)
class TableFacts:
    """A file of rows."""

    path: Path
    columns: list[ColumnFacts]
    settings: dict[str, tuple[Any, str]]
    """Keys of `[data]` that the file needs, each with the reason."""
    records: int

    def find(self, *names: str) -> ColumnFacts | None:
        """Return the first column that has one of these names, in any case."""
        lower = {column.name.lower(): column for column in self.columns}
        return next((lower[name] for name in names if name in lower), None)

    def of_kind(self, *kinds: Kind) -> list[ColumnFacts]:
        """Return the columns of these kinds, in the order of the file."""
        return [column for column in self.columns if column.kind in kinds]

    def describe_columns(self) -> str:
        """Say which columns there are."""
        return ", ".join(f"{column.name!r} ({column.kind})" for column in self.columns[:12])


def read_table(path: Path, format: str) -> TableFacts:
    """Read the first records of a csv, tsv, jsonl or parquet file."""
    if format in ("csv", "tsv"):
        return _read_cells(path, format)
    rows = list(islice(_read_parquet(path) if format == "parquet" else _read_json(path), RECORDS))
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"'{path}' has no rows of named values")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return TableFacts(path, [ColumnFacts(name, [row.get(name) for row in rows]) for name in names], {}, len(rows))


def _read_cells(path: Path, format: str) -> TableFacts:
    with collect_warnings():  # what they say becomes a setting
        dialect, names, records = read_first_records(path, format, RECORDS, Data())
    settings: dict[str, tuple[Any, str]] = {}
    if dialect.separator != {"csv": ",", "tsv": "\t"}[format]:
        settings["separator"] = dialect.separator, "the first lines have no commas"
    if dialect.encoding not in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        settings["encoding"] = dialect.encoding, "the file is not UTF-8, and all of it fits Western European"
    columns = list(zip(*records, strict=True))
    facts = [ColumnFacts(name, list(column)) for name, column in zip(names, columns, strict=True)]
    return TableFacts(path, facts, settings, len(records))


def _read_json(path: Path) -> Iterator[Any]:
    """Yield the rows of a file with one JSON object a line, or with one list of them."""
    with open_bytes(path) as file:
        head = file.read(1)
        file.seek(0)
        try:
            if head == b"[":
                yield from json.loads(file.read())
                return
            for line in file:
                if line.strip():
                    yield json.loads(line)
        except ValueError as error:
            raise DataError(f"'{path}' is not JSON: {error}") from None


def _read_parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(RECORDS):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise DataError(f"'{path}' is not a parquet file: {error}") from None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        return float(value) - float(value) == 0
    except (TypeError, ValueError):
        return False
