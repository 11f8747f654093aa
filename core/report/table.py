"""Tables as plain data: for the page, for a CSV file, for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskrecipe.system.quantities import format_number

Cell = str | float | None


@dataclass(frozen=True)
class Table:
    """Rows under named columns. Numbers are kept as numbers, so that they can be sorted."""

    key: str
    title: str
    columns: list[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        return [
            any(isinstance(row[place], int | float) for row in self.rows)
            and not any(isinstance(row[place], str) for row in self.rows)
            for place in range(len(self.columns))
        ]


def show_cell(cell: Cell) -> str:
    """Write a cell as it is read."""
    return cell if isinstance(cell, str) else format_number(cell)
