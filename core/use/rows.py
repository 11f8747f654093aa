"""From records of a file to preprocessed rows. A row that can't be used is set aside, with what is wrong with it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.columns import require_columns
from taskrecipe.data.load import IMAGE_COLUMNS
from taskrecipe.errors import DataError, RecipeError, UsageError
from taskrecipe.optional import CutsRows, HasParts
from taskrecipe.recipe import PREDICT, Recipe, target_columns
from taskrecipe.system.python_warnings import collect_warnings
from taskrecipe.system.suggestions import did_you_mean
from taskrecipe.use.records import Record
from taskrecipe.use.scores import find_owners

if TYPE_CHECKING:
    from datasets import Dataset

Numbered = dict[int, dict[str, Any]]
"""Rows by their number in the window."""


@dataclass(frozen=True)
class Pieces:
    """Preprocessed rows that are predicted together, and the number in the window of the row that each belongs to."""

    rows: Dataset
    numbers: Sequence[int]


@dataclass(frozen=True)
class RowMaker:
    """Makes preprocessed rows of records, for a recipe or for one part of it."""

    recipe: Recipe
    task: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.recipe, HasParts):
            if self.task is not None:
                raise UsageError(f"recipe {self.recipe.spec.recipe!r} has one task only: leave --task out")
            return
        known = list(self.recipe.parts())
        if self.task not in known:
            hint = did_you_mean(self.task or "", known)
            raise UsageError(f"--task must name the task to predict: {', '.join(known)}{hint}")

    @cached_property
    def part(self) -> Recipe:
        """The recipe whose columns the rows have."""
        return self.recipe.parts()[self.task or ""] if isinstance(self.recipe, HasParts) else self.recipe

    def make(self, records: Sequence[Record]) -> tuple[list[Pieces], dict[int, str]]:
        """Return the pieces of all rows that can be used, and what is wrong with the others, by their numbers."""
        rows = {number: self._rename(one) for number, one in enumerate(records) if one.problem is None}
        with collect_warnings():  # each window would repeat them
            made, wrong = self._make_rows(rows)
            if rows and not made and any(isinstance(cell, str) for row in rows.values() for cell in row.values()):
                # Cells of a csv are text; this recipe may want numbers.
                typed = {number: _read_numbers(row) for number, row in rows.items()}
                again, still_wrong = self._make_rows(typed)
                made, wrong = (again, still_wrong) if again else (made, wrong)
        return made, wrong | {n: str(one.problem) for n, one in enumerate(records) if one.problem is not None}

    def _rename(self, record: Record) -> dict[str, Any]:
        """Return the values of a record by our names of columns, without targets."""
        ours = {theirs: name for name, theirs in self.part.spec.data.columns.items()}
        targets = target_columns(self.part)
        values = {ours.get(name, name): value for name, value in record.values.items()}
        values = {name: value for name, value in values.items() if name not in targets}
        for name in IMAGE_COLUMNS:
            if name in values and name in self.part.columns():
                values[name] = _find_image(values[name], record.folder)
        return values

    def _make_rows(self, rows: Numbered) -> tuple[list[Pieces], dict[int, str]]:
        """Preprocess rows together. Where that fails, find the rows at fault and go on without them."""
        wrong: dict[int, str] = {}
        waiting, made = [dict(rows)] if rows else [], list[Pieces]()
        while waiting:
            chosen = waiting.pop()
            try:
                if chosen:
                    made.append(self._make_pieces(chosen))
                continue
            except DataError as error:
                at_fault, message = error.row, _describe(error)
            except (RecipeError, MemoryError):
                raise
            except Exception as error:  # a recipe's own code meets values that it does not expect
                at_fault, message = None, f"{type(error).__name__}: {error}"
            numbers = list(chosen)
            if len(numbers) == 1 or (at_fault is not None and at_fault < len(numbers)):
                wrong[numbers[at_fault or 0]] = message
                waiting.append({n: row for n, row in chosen.items() if n not in wrong})
            else:
                half = len(numbers) // 2
                waiting += [{n: chosen[n] for n in part} for part in (numbers[half:], numbers[:half])]
        return made, wrong

    def _make_pieces(self, rows: Numbered) -> Pieces:
        given = _make_dataset(list(rows.values()), set(self.part.columns()))
        require_columns(given.column_names, self.part.input_columns(), PREDICT)
        self.part.check(given, PREDICT)
        whole = self.recipe.mark_part(self.task or "", given) if isinstance(self.recipe, HasParts) else given
        made = self.recipe.preprocess(whole, PREDICT)
        owners = find_owners(self.recipe, made)
        if owners is None or (len(made) != len(rows) and not isinstance(self.recipe, CutsRows)):
            raise DataError(f"the recipe makes {len(made)} rows of {len(rows)}, so they can't be told apart")
        numbers = list(rows)
        return Pieces(made, [numbers[owner] for owner in owners])


def _make_dataset(rows: list[dict[str, Any]], known: set[str]) -> Dataset:
    """Make a data set of rows. A column that no recipe reads is left out if its values have no common type."""
    import pyarrow as pa
    from datasets import Dataset, DatasetInfo, Features, Image

    image, names = Image(), dict.fromkeys(name for row in rows for name in row)
    images = [name for name in IMAGE_COLUMNS if name in known and name in names]
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values, image.pa_type if name in images else None)
        except (pa.ArrowException, OverflowError) as error:
            if name in known:
                raise DataError(f"rows have values of different kinds: {error}", column=name) from None
    table = pa.table(columns)
    features = {**Features.from_arrow_schema(table.schema), **dict.fromkeys(images, image)}
    return Dataset(table, info=DatasetInfo(features=Features(features)), fingerprint=secrets.token_hex(8))


def _find_image(value: Any, folder: str) -> Any:
    """Return an image as `datasets` stores it: the file that a name stands for, or its bytes."""
    if isinstance(value, bytes):
        return {"bytes": value, "path": None}
    if isinstance(value, str):
        return {"bytes": None, "path": str(Path(folder, value))}
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
        return {"bytes": value.get("bytes"), "path": value.get("path")}
    return _encode_image(value) if hasattr(value, "save") else value


def _encode_image(image: Any) -> dict[str, Any]:
    import io

    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def _read_numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _read_number(value) if isinstance(value, str) else value for name, value in row.items()}


def _read_number(text: str) -> Any:
    readers: tuple[Callable[[str], Any], ...] = (int, float)
    for read in readers:
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _describe(error: DataError) -> str:
    message = re.sub(r", as in \d+ of \d+ rows$", "", error.message)  # how many others there are is no matter here
    return f"column {error.column!r}: {message}" if error.column else message
