"""Read the evidence of a run: what it predicted for each row of a split, and its metrics on resamples of the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe.comparison.statistics import Numbers
from taskrecipe.run.folder_names import PREDICTIONS

if TYPE_CHECKING:
    import pyarrow as pa

BOOTSTRAP = ".bootstrap.parquet"
METADATA = b"taskrecipe"
FORMAT = 1


class Evidence:
    """The evidence of one split. Columns are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        from pyarrow.parquet import ParquetFile

        self.path = path
        with ParquetFile(path) as file:
            self.columns = frozenset(file.schema_arrow.names)
            about = json.loads((file.schema_arrow.metadata or {}).get(METADATA, b"{}"))
        if about.get("format") != FORMAT:
            raise ValueError(f"it has format {about.get('format')!r}; this version reads {FORMAT}")
        self.about: dict[str, Any] = about

    @property
    def split(self) -> str:
        """The split's name."""
        return str(self.about["split"])

    @property
    def rows(self) -> int:
        """Rows of the whole split."""
        return int(self.about["rows"])

    @property
    def kept(self) -> int:
        """Rows that are in the file."""
        return int(self.about["kept"])

    @property
    def step(self) -> int | None:
        """The update after which the weights were evaluated; None where it is not known."""
        return self.about.get("step")

    @property
    def data(self) -> str | None:
        """The fingerprint of the split's rows."""
        return self.about.get("data")

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the split."""
        return dict(self.about.get("metrics", {}))

    @property
    def labels(self) -> list[str]:
        """The class names; empty where there are none."""
        return list(self.about.get("labels") or [])

    @cached_property
    def row_numbers(self) -> NDArray[np.int64]:
        """The number of each row in its split."""
        return np.asarray(self.read("row"), dtype=np.int64)

    @cached_property
    def bootstrap(self) -> dict[str, Numbers]:
        """Each metric on every resample of the rows; empty where there are none."""
        from pyarrow.parquet import read_table

        path = self.path.with_name(self.path.name.removesuffix(".parquet") + BOOTSTRAP)
        if not path.is_file():
            return {}
        table = read_table(path)
        return {name: table[name].to_numpy().astype(np.float64) for name in table.column_names}

    def read(self, column: str) -> pa.ChunkedArray:
        """Read one column."""
        from pyarrow.parquet import read_table

        return read_table(self.path, columns=[column])[column]

    def read_numbers(self, column: str) -> Numbers | None:
        """Read a column of numbers or truth values; None where it is missing or has gaps."""
        if column not in self.columns or (found := self.read(column)).null_count:
            return None
        numbers = found.to_numpy().astype(np.float64)
        return numbers if np.isfinite(numbers).all() else None

    def read_flags(self, column: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Read a column of truth values, and where it has them."""
        found = self.read(column)
        return found.fill_null(False).to_numpy().astype(bool), found.is_valid().to_numpy().astype(bool)

    def read_json(self, column: str, rows: NDArray[np.int64] | None = None) -> list[Any]:
        """Read a column of JSON texts: all, or those at some places of the file."""
        found = self.read(column) if column in self.columns else None
        if found is None:
            return [None] * (self.kept if rows is None else len(rows))
        return [_parse(text) for text in (found if rows is None else found.take(rows)).to_pylist()]


def read_evidence(folder: Path) -> tuple[dict[str, Evidence], list[str]]:
    """Return the evidence of every split of a run, and what of it can't be read."""
    found: dict[str, Evidence] = {}
    problems = []
    for path in sorted((folder / PREDICTIONS).glob("*.parquet")):
        if path.name.endswith(BOOTSTRAP) or not path.is_file():
            continue
        try:
            evidence = Evidence(path)
            found[evidence.split] = evidence
        except (OSError, ValueError, LookupError, TypeError) as error:  # pyarrow's errors are ValueErrors
            problems.append(f"{path} can't be read: {error}")
    return found, problems


def _parse(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text
