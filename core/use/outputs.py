"""The files that answers are written to: csv, jsonl, parquet, or a folder with images.

While rows are predicted, the answers of each window are kept in a file of their own, in a folder next to the output
whose name ends in `.part`. A window is there whole or not at all, so that a killed prediction goes on after the last
one. At the end the windows become one file, which replaces the output in one step.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.errors import UsageError
from taskrecipe.run.lock import FolderLock
from taskrecipe.system import atomic_files
from taskrecipe.use.records import Record

if TYPE_CHECKING:
    from taskrecipe.use.predictor import Outcome

PREDICTION = "prediction"
"""The column of the answer."""
FILES = "files"
"""Where the images of an answer are, by name."""
PROBLEM = "problem"

ANSWERS = "predictions.jsonl"
"""The file of answers in a folder of images."""
_SETTINGS = "settings.json"

Kind = Literal["csv", "tsv", "jsonl", "parquet", "folder"]
_ENDINGS: dict[str, Kind] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def make_line(record: Record, outcome: Outcome | Mapping[str, Any]) -> dict[str, Any]:
    """Return an answered row as JSON values: the columns of the input, and the answer or what is wrong."""
    found = outcome if isinstance(outcome, Mapping) else as_entry(outcome)
    return {**{name: _as_plain(value) for name, value in record.values.items()}, **found}


def as_entry(outcome: Outcome) -> dict[str, Any]:
    """Return what is kept of an outcome."""
    if outcome.problem is not None:
        return {PROBLEM: outcome.problem}
    return {PREDICTION: outcome.answer}


def to_json_line(value: Any) -> bytes:
    """Return a value as one line of strict JSON. Numbers that are not finite become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(_drop_non_finite(value), ensure_ascii=False, allow_nan=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def require_free_names(records: Iterable[Record]) -> None:
    """Refuse input that has a column of the name of the answer's."""
    for record in records:
        taken = [name for name in record.values if re.fullmatch(rf"({PREDICTION}|{FILES}|{PROBLEM})(\..*)?", name)]
        if taken:
            raise UsageError(f"the input has a column {taken[0]!r}, which the output needs for itself; rename it there")


@dataclass(frozen=True)
class Output:
    """Where answers go, and in which form."""

    path: Path
    kind: Kind

    @classmethod
    def find(cls, path: Path) -> Output:
        """Find the form by the ending of the path. A path without an ending is a folder."""
        if path.suffix.lower() in _ENDINGS and not path.is_dir():
            return cls(path, _ENDINGS[path.suffix.lower()])
        if path.suffix and not path.is_dir():
            raise UsageError(f"{path}: an output ends in {', '.join(_ENDINGS)}, or is a folder, without an ending")
        if path.is_file():
            raise UsageError(f"{path} is a file; an output that is a file ends in {', '.join(_ENDINGS)}")
        if path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty; name a new folder for the answers")
        return cls(path, "folder")


def bad_rows_file(out: Path) -> Path:
    """Return the file next to an output for the rows that were left out."""
    return out.with_name(f"{out.stem}.bad.jsonl")


class Journal:
    """The windows of an output that are done."""

    def __init__(self, output: Output, settings: Mapping[str, Any]) -> None:
        self.output = output
        self.folder = output.path.with_name(f".{output.path.name}.part")
        self.images = self.folder / "images"
        self._settings = settings
        self._lock = FolderLock(self.folder)

    def __enter__(self) -> Journal:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"can't write next to {self.output.path}: {error.strerror}") from error
        self._lock.acquire()
        try:
            self._require_same_settings()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder.exists():
            self._lock.release()

    def _require_same_settings(self) -> None:
        path = self.folder / _SETTINGS
        if not path.exists():
            atomic_files.replace(path, json.dumps(self._settings).encode())
            return
        saved = json.loads(path.read_bytes())
        changed = [key for key in {**saved, **self._settings} if saved.get(key) != self._settings.get(key)]
        if changed:
            raise UsageError(
                f"{self.folder} holds a part of another prediction: {' and '.join(changed)} differ; remove that folder "
                "to start again, or name another output"
            )

    @property
    def done(self) -> int:
        """How many windows are done, counted from the first."""
        number = 0
        while self._window(number).exists():
            number += 1
        return number

    def commit(self, number: int, records: Sequence[Record], outcomes: Sequence[Outcome], first: int) -> None:
        """Write the answers of a window, and before them their images."""
        with atomic_files.explain_full_disk(self.folder):
            lines = []
            for place, (record, outcome) in enumerate(zip(records, outcomes, strict=True), first):
                entry = as_entry(outcome)
                if outcome.images:
                    entry[FILES] = self._write_images(outcome, _name_images(record, place))
                lines.append(to_json_line(entry))
            atomic_files.replace(self._window(number), b"".join(lines))

    def entries(self, number: int) -> list[dict[str, Any]]:
        """Return what became of each row of a window."""
        return [json.loads(line) for line in self._window(number).read_bytes().splitlines()]

    def finish(self, windows: Iterable[list[Record]]) -> int:
        """Make one file of all windows, put it in place, and return how many rows were left out."""
        pairs = [windows] if isinstance(windows, list) else windows
        work = Assembly(self, pairs)
        with atomic_files.explain_full_disk(self.output.path):
            made, left_out = work.write()
            atomic_files.sync_tree(made) if made.is_dir() else atomic_files.sync(made)
            if self.output.kind == "folder" and self.output.path.is_dir():
                self.output.path.rmdir()
            made.replace(self.output.path)
            atomic_files.sync(self.output.path.parent)
        self._lock.release()
        atomic_files.remove(self.folder)
        return left_out

    def _window(self, number: int) -> Path:
        return self.folder / f"window-{number}.jsonl"

    def _write_images(self, outcome: Outcome, stem: str) -> dict[str, str]:
        self.images.mkdir(exist_ok=True)
        names = {}
        for name, image in outcome.images.items():
            names[name] = f"{stem}.{name}.png"
            image.save(self.images / names[name], format="PNG")
        return names


def _name_images(record: Record, place: int) -> str:
    """Return how the names of a row's images begin: with its number, and the name of the image it was made of."""
    given = next((value for value in record.values.values() if isinstance(value, str) and "." in value), "")
    stem = Path(given).stem if record.values.get("image") == given else ""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", stem)[:80]
    return f"{place:06d}-{safe}" if safe else f"{place:06d}"


class Assembly:
    """Makes the output file of the windows of a journal. Only one window at a time is in memory."""

    def __init__(self, journal: Journal, windows: Iterable[list[Record]]) -> None:
        self.journal, self.output, self.windows = journal, journal.output, windows
        self.left_out = 0

    def write(self) -> tuple[Path, int]:
        """Write everything. Return the file or folder that was made, and how many rows were left out."""
        made = self.journal.folder / ("images" if self.output.kind == "folder" else "output")
        if self.output.kind == "folder":
            made.mkdir(exist_ok=True)
        with ExitStack() as stack:
            lines = self._good_lines(stack)
            if self.output.kind in ("csv", "tsv"):
                self._write_table(made, lines)
            elif self.output.kind == "parquet":
                self._write_parquet(made, lines)
            else:
                target = made / ANSWERS if made.is_dir() else made
                with target.open("wb") as file:
                    for window in lines:
                        file.writelines(map(to_json_line, window))
        return made, self.left_out

    def _good_lines(self, stack: ExitStack) -> Iterator[list[dict[str, Any]]]:
        """Yield the answered rows of each window, and write the others into their own file."""
        bad: Any = None
        for number, records in enumerate(self.windows):
            good = []
            for record, entry in zip(records, self.journal.entries(number), strict=True):
                if PROBLEM not in entry:
                    good.append(make_line(record, entry))
                    continue
                if bad is None:
                    bad = stack.enter_context(bad_rows_file(self.output.path).open("wb"))
                self.left_out += 1
                bad.write(to_json_line({"place": record.place, PROBLEM: entry[PROBLEM], "row": make_line(record, {})}))
            yield good

    def _columns(self) -> list[str]:
        """Return the columns of all answers, in the order in which they first appear."""
        names: dict[str, None] = {}
        for number in range(self.journal.done):
            for entry in self.journal.entries(number):
                names |= dict.fromkeys(flatten_answer(entry))
        return [name for name in names if name != PROBLEM]

    def _write_table(self, made: Path, windows: Iterator[list[dict[str, Any]]]) -> None:
        """Write a csv. Lists become JSON; names that lead into an answer are joined by dots."""
        answers, writer = self._columns(), None
        with made.open("w", encoding="utf-8", newline="") as file:
            for window in windows:
                for line in window:
                    flat = flatten_answer(line)
                    if writer is None:
                        given = [name for name in flat if name not in answers]
                        delimiter = "\t" if self.output.kind == "tsv" else ","
                        writer = csv.DictWriter(
                            file, [*given, *answers], delimiter=delimiter, extrasaction="ignore", lineterminator="\n"
                        )
                        writer.writeheader()
                    writer.writerow({name: _as_cell(value) for name, value in flat.items()})

    def _write_parquet(self, made: Path, windows: Iterator[list[dict[str, Any]]]) -> None:
        """Write a parquet file with a row group for each window. Its types fit the answers of all windows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = self.journal.folder / "arrow"
        parts.mkdir(exist_ok=True)
        schemas, count = [], 0
        for window in windows:
            table = _make_table([flatten_answer(line) for line in window])
            schemas.append(table.schema)
            with pa.OSFile(str(parts / str(count)), "wb") as file, pa.ipc.new_file(file, table.schema) as stream:
                stream.write_table(table)
            count += 1
        schema = pa.unify_schemas(schemas, promote_options="permissive")
        with pq.ParquetWriter(made, schema) as writer:
            for number in range(count):
                with pa.memory_map(str(parts / str(number))) as source:
                    writer.write_table(_fit_table(pa.ipc.open_file(source).read_all(), schema))


def flatten_answer(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with the parts of its answer as columns of their own: `prediction.label` and the like."""
    flat: dict[str, Any] = {}
    for name, value in line.items():
        if name in (PREDICTION, FILES) and isinstance(value, dict):
            flat |= _flatten(name, value)
        else:
            flat[name] = value
    return flat


def _flatten(prefix: str, value: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= _flatten(f"{prefix}.{name}", inner) if isinstance(inner, dict) else {f"{prefix}.{name}": inner}
    return flat


def _make_table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError):  # values of different kinds
            columns[name] = pa.array([None if value is None else json.dumps(value, default=str) for value in values])
    return pa.table(columns)


def _fit_table(table: Any, schema: Any) -> Any:
    """Return a table with the columns and types of `schema`."""
    import pyarrow as pa

    columns = [
        table[one.name].cast(one.type) if one.name in table.column_names else pa.nulls(len(table), one.type)
        for one in schema
    ]
    return pa.table(columns, schema=schema)


def _as_cell(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return to_json_line(value).decode().rstrip("\n")
    return value


def _as_plain(value: Any) -> Any:
    """Return a value of the input as JSON: images are named, not copied."""
    if isinstance(value, bytes):
        return None
    if isinstance(value, Mapping) and "bytes" in value:
        return value.get("path")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return None if hasattr(value, "save") else value


def _drop_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _drop_non_finite(inner) for name, inner in value.items()}
    return [_drop_non_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value
