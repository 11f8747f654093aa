"""Rows from files. What can't be read is named, with its line."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.coco import is_coco_file, load_coco
from taskrecipe.data.compression import COMPRESSIONS, open_bytes
from taskrecipe.data.encodings import require_known_encoding
from taskrecipe.data.facts import identify_rows, make_key, recall_fact
from taskrecipe.data.file_digest import digest_files
from taskrecipe.data.image_folders import load_image_folders, load_mapped_images, open_named_images
from taskrecipe.data.places import FilePlace, add_place
from taskrecipe.data.problems import Problems
from taskrecipe.data.read_errors import explain_read_errors
from taskrecipe.data.squad_json import is_squad_file, load_squad
from taskrecipe.data.tables import load_table, stream_table
from taskrecipe.data.voc import load_voc
from taskrecipe.errors import DataError
from taskrecipe.remote.urls import is_url

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Data

TABLES = ("csv", "tsv")
BUILDERS = {"jsonl": "json", "parquet": "parquet", "text": "text"}
"""Formats that are read by builders of `datasets`."""

ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".xml": "voc",
}

Paths = dict[str, list[Path]]

IMAGE_FORMATS: dict[str, Callable[[Paths, Path | None], dict[str, Any]]] = {
    "imagefolder": load_image_folders,
    "coco": load_coco,
    "voc": load_voc,
}
"""Formats of which all splits are read at once, as a class has one number in all of them."""


def read_files(
    data: Data, wanted: Collection[str], streamed: str | None = None, image_columns: Collection[str] = ()
) -> dict[str, Any]:
    """Read the `wanted` splits of `[data.files]` into memory, except the `streamed` one.

    Texts in `image_columns` are names of images, relative to `[data].images` or to the file that holds them.
    """
    if data.maps:
        return _read_mapped_images(data, wanted, streamed)
    problems, paths, formats = Problems(), Paths(), dict[str, str]()
    for split in wanted:
        with problems.collect():
            paths[split] = find_files(split, data.files[split])
            formats[split] = find_format(data, paths[split], split)
    if set(formats.values()) & set(IMAGE_FORMATS):
        problems.raise_found()
        return _read_image_formats(data, paths, formats, streamed)
    rows: dict[str, Any] = {}
    for split, format in formats.items():
        with problems.collect():
            reader = _Reader(data, format, split, split == streamed)
            rows[split] = reader.read(paths[split], image_columns)
    problems.raise_found()
    return rows


def find_files(split: str, given: str | list[str]) -> list[Path]:
    """Return the files and folders that paths, globs and URLs stand for, in a fixed order. URLs are downloaded."""
    paths: list[Path] = []
    for pattern in [given] if isinstance(given, str) else given:
        if is_url(pattern):
            from taskrecipe.remote.downloads import fetch_copies

            paths += fetch_copies(pattern, f"split {split!r}")
            continue
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


def find_format(data: Data, files: list[Path], split: str) -> str:
    """Return the format of a split's files, and refuse keys of `[data]` that don't apply to it."""
    format = data.format or _guess_format(files, split, data.images)
    if format not in TABLES:
        given = [key for key in ("quotes", "separator") if getattr(data, key) is not None]
        given += ["header"] if not data.header else []
        given += ["encoding"] if data.encoding and format != "text" else []
        if given:
            kinds = "csv, tsv and text" if given[0] == "encoding" else "csv and tsv"
            raise DataError(f"[data].{given[0]} is for {kinds} files; '{files[0]}' is read as {format}", split=split)
    if data.encoding:
        require_known_encoding(data.encoding)
    return format


def _guess_format(files: list[Path], split: str, images: str | None) -> str:
    formats = {guess_by_name(path) for path in files}
    if formats == {"jsonl"}:
        return _guess_json(files, has_images=images is not None)
    if len(formats) == 1 and None not in formats:
        return str(formats.pop())
    names = ", ".join(sorted({path.name for path in files})[:5])
    known = ", ".join([*TABLES, *BUILDERS, *IMAGE_FORMATS, "squad"])
    message = f"the endings of {names} tell no common format; set [data].format to one of {known}"
    raise DataError(message, split=split)


def guess_by_name(path: Path) -> str | None:
    """Return the format that the ending of a file's name tells; None if it tells none."""
    if path.is_dir():
        return "voc" if next(path.glob("*.xml"), None) else "imagefolder"
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    return ENDINGS.get(suffixes[-1]) if suffixes else None


def _guess_json(files: list[Path], *, has_images: bool) -> str:
    """Return the format of json files by their content: rows, COCO or SQuAD."""
    if all(is_squad_file(path) for path in files):
        return "squad"
    if all(is_coco_file(path) for path in files) or (has_images and not any(map(_holds_rows, files))):
        return "coco"
    return "jsonl"


def _holds_rows(path: Path) -> bool:
    """Whether a json file is a list of rows, or has a row on each line."""
    if ".json" not in [suffix.lower() for suffix in path.suffixes]:
        return True
    with explain_read_errors(f"'{path}'"), open_bytes(path) as file:
        lines = [line for line in (file.readline(), file.readline()) if line.strip()]
    if not lines or lines[0].lstrip().startswith(b"["):
        return True
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def _read_image_formats(data: Data, paths: Paths, formats: dict[str, str], streamed: str | None) -> dict[str, Any]:
    format = next(format for format in formats.values() if format in IMAGE_FORMATS)
    _refuse_stream_of_images(format, streamed)
    if len(set(formats.values())) > 1:
        raise DataError(f"splits have the formats {', '.join(formats.values())}; set [data].format to one for all")
    return IMAGE_FORMATS[format](paths, Path(data.images) if data.images else None)


def _read_mapped_images(data: Data, wanted: Collection[str], streamed: str | None) -> dict[str, Any]:
    _refuse_stream_of_images("images with [data.maps]", streamed)
    problems, rows = Problems(), {}
    for split in wanted:
        with problems.collect():
            if split not in data.maps:
                raise DataError("[data.maps] names no folder for it", split=split)
            images = Path(data.images) if data.images else None
            files = find_files(split, data.files[split])
            rows[split] = load_mapped_images(files, images, Path(data.maps[split]), split)
    problems.raise_found()
    return rows


def _refuse_stream_of_images(what: str, streamed: str | None) -> None:
    if streamed is not None:
        raise DataError(f"[data].streaming reads text and tables, not {what!r}; images stay on the disk anyway")


class _Reader:
    """Reads the files of one split, which have one format."""

    def __init__(self, data: Data, format: str, split: str, streaming: bool) -> None:
        self.data, self.format, self.split, self.streaming = data, format, split, streaming

    def read(self, files: list[Path], image_columns: Collection[str]) -> Any:
        """Return the rows of the files, with images for the names in `image_columns`."""
        for path in files:
            if path.is_dir():
                raise DataError(f"'{path}' is a folder; name the files in it, as in '{path}/*'", split=self.split)
        rows = self._read_rows(files)
        if self.streaming:
            if image_columns and self.format != "parquet":
                _refuse_stream_of_images(f"images that {self.format} rows name", self.split)
            return rows
        named = [name for name in image_columns if name in rows.column_names and _is_text(rows.features[name])]
        return self._open_images(files, rows, named) if named else rows

    def _open_images(self, files: list[Path], rows: Any, columns: list[str]) -> Any:
        from datasets import concatenate_datasets

        if not self.data.images and len({path.parent for path in files}) > 1:
            return concatenate_datasets([self._open_images([path], self._read_rows([path]), columns) for path in files])
        folder = Path(self.data.images) if self.data.images else files[0].parent
        try:
            return open_named_images(rows, columns, folder, self.split)
        except DataError as error:
            raise add_place(error, {self.split: FilePlace(files, self.format, self.data)}) from None

    def _read_rows(self, files: list[Path]) -> Any:
        if self.format in TABLES:
            read = stream_table if self.streaming else load_table
            return read(files, self.format, self.split, self.data)
        if self.format == "squad":
            if self.streaming:
                raise DataError("[data].streaming reads text and tables, not 'squad'", split=self.split)
            return load_squad(files, self.split)
        try:
            return self._build_rows(files)
        except DataError:
            for path in files if len(files) > 1 else []:
                self._build_rows([path])  # raises the error of the file that is at fault
            raise

    def _build_rows(self, files: list[Path]) -> Any:
        from datasets import load_dataset

        names = [glob.escape(str(path)) for path in files]
        options = {"encoding": self.data.encoding} if self.data.encoding else {}
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        try:
            with explain_read_errors(f"'{files[0]}'{more}", self.split):
                found = {"data_files": {"train": names}, "split": "train", "streaming": self.streaming}
                if self.streaming:
                    return load_dataset(BUILDERS[self.format], **found, **options)
                # By itself, datasets would know files by their names and times only.
                content = make_key([digest_files(files)])[:32]
                rows = load_dataset(BUILDERS[self.format], content, **found, **options)
                recall_fact(["valid text", *identify_rows(rows)], partial(_require_valid, rows))
                return rows
        except DataError as error:
            fault = _find_fault(files[0], self.format) if len(files) == 1 else None
            if fault is None:
                raise
            raise DataError(f"'{files[0]}': {fault}", split=self.split) from error


def _require_valid(rows: Any) -> bool:
    """Raise unless all text is UTF-8: json and parquet may hold other bytes."""
    for batch in rows.data.table.to_batches():
        batch.validate(full=True)
    return True


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _find_fault(path: Path, format: str) -> str | None:
    """Return where a file is not UTF-8 or has a line that is not a JSON object; None if that is not what is wrong."""
    if format == "parquet":
        return None
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                fault = _find_line_fault(line, json_wanted=format == "jsonl" and path.suffix != ".json")
                if fault:
                    return f"line {number} {fault}"
    except (OSError, EOFError, ImportError):
        return None
    return None


def _find_line_fault(line: bytes, *, json_wanted: bool) -> str | None:
    try:
        text = line.decode("utf-8")
        if json_wanted and text.strip() and not isinstance(json.loads(text), dict):
            return "is not an object"
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {line[error.start]:#04x} at {error.start + 1}); save the file as UTF-8"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    return None
