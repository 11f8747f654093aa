"""Rows from files on this machine, read by datasets' own builders; what can't be read is named, with its line."""

from __future__ import annotations

import glob
import gzip
import json
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.core.data import coco, voc
from taskrecipe.core.data.causes import explained
from taskrecipe.core.errors import DataError

if TYPE_CHECKING:
    from taskrecipe.core.spec.spec import Data

# Only an empty cell is a missing value: pandas would also take "None", "NA" or "null" for one.
_TABLE = {"keep_default_na": False, "na_values": [""]}

BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": ("csv", _TABLE),
    "tsv": ("csv", {**_TABLE, "sep": "\t"}),
    "jsonl": ("json", {}),
    "parquet": ("parquet", {}),
    "text": ("text", {}),
}

ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

Paths = dict[str, list[Path]]


def load(data: Data, wanted: Collection[str], streamed: str | None = None) -> dict[str, Any]:
    """The `wanted` splits of `[data.files]`, all of them stored but the `streamed` one."""
    paths = {split: found(split, data.files[split]) for split in wanted}
    formats = {split: data.format or guess_format(files, split, data.images) for split, files in paths.items()}
    pictures = sorted(set(formats.values()) & set(PICTURES))
    if not pictures:
        return {split: _rows(files, formats[split], split, split == streamed) for split, files in paths.items()}
    if streamed is not None:
        raise DataError(
            f"[data].streaming reads text and tables, not {pictures[0]!r}; pictures stay on the disk anyway"
        )
    if len(set(formats.values())) > 1:
        raise DataError(f"splits have the formats {', '.join(formats.values())}; set [data].format to one for all")
    return PICTURES[pictures[0]](paths, Path(data.images) if data.images else None)


def found(split: str, given: str | list[str]) -> list[Path]:
    """The files and folders that paths and globs stand for, in a fixed order."""
    paths: list[Path] = []
    for pattern in [given] if isinstance(given, str) else given:
        exact = Path(pattern)
        # Path.glob takes no absolute patterns.
        matches = [exact] if exact.exists() else [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207
        if not matches:
            raise DataError(f"there is no file {pattern!r}", split=split)
        paths += matches
    for path in paths:
        if not (path.is_file() or path.is_dir()):
            raise DataError(f"{str(path)!r} is neither a file nor a folder", split=split)
    return paths


def guess_format(files: list[Path], split: str, images: str | None = None) -> str:
    """The format that the files' endings tell, which must be one; json may be COCO's, with a folder of pictures."""
    formats = {_guess(path) for path in files}
    if formats == {"jsonl"} and (images is not None or all(coco.recognised(path) for path in files)):
        return "coco"
    if len(formats) == 1 and None not in formats:
        return str(formats.pop())
    names = ", ".join(sorted({path.name for path in files})[:5])
    known = ", ".join([*BUILDERS, *PICTURES])
    message = f"the endings of {names} tell no common format; set [data].format to one of {known}"
    raise DataError(message, split=split)


def _guess(path: Path) -> str | None:
    if path.is_dir():
        return "voc" if next(path.glob("*.xml"), None) else "imagefolder"
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    ending = suffixes[-1] if suffixes else ""
    return "voc" if ending == ".xml" else ENDINGS.get(ending)


def _rows(files: list[Path], format: str, split: str, streaming: bool) -> Any:
    for path in files:
        if path.is_dir():
            raise DataError(f"'{path}' is a folder; name the files in it, as in '{path}/*'", split=split)
    try:
        rows = _read(files, format, split, streaming)
    except DataError:
        for path in files if len(files) > 1 else []:
            _read([path], format, split, streaming)  # raises the error of the file that is at fault
        raise
    if format == "tsv" and not streaming:
        _warn_of_line_breaks(rows, split)
    return rows


def _read(files: list[Path], format: str, split: str, streaming: bool) -> Any:
    from datasets import load_dataset

    builder, options = BUILDERS[format]
    names = [glob.escape(str(path)) for path in files]
    try:
        with explained(f"'{files[0]}'" + (f" and {len(files) - 1} more" if len(files) > 1 else ""), split):
            rows = load_dataset(builder, data_files={"train": names}, split="train", streaming=streaming, **options)
            if not streaming:
                rows.data.table.validate(full=True)  # json and parquet may hold text that is not UTF-8
            return rows
    except DataError as error:
        fault = _fault(files[0], format) if len(files) == 1 else None
        if fault is None:
            raise
        raise DataError(f"'{files[0]}': {fault}", split=split) from error


def _fault(path: Path, format: str) -> str | None:
    """Where a text file is not UTF-8, or has a line that is not a JSON object; None where that is not the trouble."""
    if format == "parquet" or path.suffix in COMPRESSIONS[1:]:
        return None
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                fault = _line_fault(line, json_wanted=format == "jsonl" and path.suffix != ".json")
                if fault:
                    return f"line {number} {fault}"
        except (OSError, EOFError):
            return None
    return None


def _line_fault(line: bytes, *, json_wanted: bool) -> str | None:
    try:
        text = line.decode("utf-8")
        if json_wanted and text.strip() and not isinstance(json.loads(text), dict):
            return "is not an object"
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {line[error.start]:#04x} at {error.start + 1}); save the file as UTF-8"
    except ValueError as error:
        return f"is not JSON: {error}"
    return None


def _warn_of_line_breaks(rows: Any, split: str) -> None:
    """A stray quote makes the reader take all up to the next one, lines and all, for one cell."""
    import pyarrow.compute as pc

    table = rows.with_format("arrow")[:]
    texts = [table[name] for name, feature in rows.features.items() if getattr(feature, "dtype", "").endswith("string")]
    broken = sum(pc.sum(pc.match_substring(column, "\n")).as_py() or 0 for column in texts)
    if broken:
        warnings.warn(
            f"split {split!r}: {broken} cells hold line breaks; if that is not meant, a stray quote has swallowed rows",
            stacklevel=2,
        )


def _folders(paths: Paths, _images: Path | None) -> dict[str, Any]:
    """Pictures with the names of their folders as labels, which are the same numbers in every split."""
    from datasets import load_dataset

    patterns = {
        f"split{number}": [glob.escape(str(path)) + ("/**" if path.is_dir() else "") for path in files]
        for number, files in enumerate(paths.values())
    }
    with explained(f"pictures in '{next(iter(paths.values()))[0]}'"):
        splits: Mapping[str, Any] = load_dataset("imagefolder", data_files=patterns)
    return dict(zip(paths, splits.values(), strict=True))


PICTURES: dict[str, Callable[[Paths, Path | None], dict[str, Any]]] = {
    "imagefolder": _folders,
    "coco": coco.load,
    "voc": voc.load,
}
