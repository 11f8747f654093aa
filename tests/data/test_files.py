"""Rows from local files: formats, globs, and errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from taskrecipe.data.files import read_files
from taskrecipe.errors import DataError
from taskrecipe.spec.spec import Data

TEXTS = ["one", "two, with a comma", 'three "quoted"']


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(files: object, **data: Any) -> Any:
    return read_files(Data(files={"train": files}, **data), ["train"])["train"]


def parquet(path: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": TEXTS}), path)
    return str(path)


LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
TABLE = 'text\none\n"two, with a comma"\n"three ""quoted"""\n'
FORMATS: dict[str, bytes | str] = {
    "a.csv": TABLE,
    "a.CSV": TABLE,
    "bom.csv": b"\xef\xbb\xbf" + TABLE.encode(),
    "a.tsv": 'text\tn\none\t1\ntwo, with a comma\t2\nthree "quoted"\t3\n',
    "a.jsonl": LINES,
    "a.ndjson": LINES,
    "a.json": json.dumps([{"text": text} for text in TEXTS]),
    "a.txt": "\n".join(TEXTS),
    "a.jsonl.gz": gzip.compress(LINES.encode()),
    "a.csv.gz": gzip.compress(TABLE.encode()),
    "odd [1] *.csv": TABLE,
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_told_by_their_endings(name: str, tmp_path: Path) -> None:
    assert read(write(tmp_path / name, FORMATS[name]))["text"] == TEXTS


@pytest.mark.parametrize("indent", [None, 2])
def test_coco_is_told_by_what_is_in_it(indent: int | None, tmp_path: Path) -> None:
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    images = [{"id": 1, "file_name": "a.png"}]
    content = {"info": {}, "images": images, "annotations": [], "categories": [{"id": 1, "name": "dog"}]}
    rows = read(write(tmp_path / "a.json", json.dumps(content, indent=indent)))
    assert rows[0]["image"].size == (20, 10)


def test_rows_with_a_column_of_pictures_are_not_coco(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"images": ["a.png"], "text": text}) + "\n" for text in TEXTS)
    assert read(write(tmp_path / "a.json", lines))["text"] == TEXTS


def test_parquet_is_read(tmp_path: Path) -> None:
    assert read(parquet(tmp_path / "a.parquet"))["text"] == TEXTS


def test_a_format_can_be_given(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.dat", LINES), format="jsonl")["text"] == TEXTS


def test_globs_and_lists_are_read_in_order(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        write(tmp_path / f"{name}.txt", name)
    assert read(str(tmp_path / "*.txt"))["text"] == ["a", "b", "c"]
    assert read([str(tmp_path / "c.txt"), str(tmp_path / "a.txt")])["text"] == ["c", "a"]


def test_words_that_pandas_takes_for_missing_stay_words(tmp_path: Path) -> None:
    rows = read(write(tmp_path / "a.csv", "text,n\nNone,1\nNA,2\nnull,3\nnan,4\n,5\n"))
    assert rows["text"] == ["None", "NA", "null", "nan", None]


def test_pictures_in_folders_are_labelled_alike_in_every_split(tmp_path: Path) -> None:
    for name in ("train/cat/1", "train/dog/2", "validation/dog/3"):
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(path)
    files = {split: str(tmp_path / split) for split in ("train", "validation")}
    splits = read_files(Data(files=files), ["train", "validation"])
    assert splits["train"].features["label"].names == ["cat", "dog"]
    assert (splits["train"]["label"], splits["validation"]["label"]) == ([0, 1], [1])


REFUSED: dict[str, tuple[bytes | str, str]] = {
    "latin.txt": ("ok\ncafé\n".encode("latin-1"), r"latin\.txt': line 2 is not UTF-8"),
    "latin.jsonl": ('{"text": "ok"}\n{"text": "é"}\n'.encode("latin-1"), r"latin\.jsonl': line 2 is not UTF-8"),
    "russian.csv.gz": (gzip.compress("text\nok\nпривет\n".encode("cp1251")), r"csv\.gz': line 3 is not UTF-8"),
    "ragged.csv": ("a,b\n1,2\n3,4,5\n", r"ragged\.csv': line 3 has 3 fields, but the header has 2"),
    "open quote.csv": ('a,b\n"x,1\nz,2\n', r"open quote\.csv': line 2: a quote opens a cell and is never closed"),
    "broken.jsonl": ('{"a": 1}\n{"a": 2\n', r"broken\.jsonl': line 2 is not JSON"),
    "numbers.jsonl": ("1\n2\n", r"numbers\.jsonl': line 1 is not an object"),
    "broken.json": ('[{"a": 1}, ', r"broken\.json': "),
    "not.parquet": ("PAR1", r"not\.parquet': .*Parquet"),
    "cut.csv.gz": (gzip.compress(TABLE.encode() * 99)[:-20], r"cut\.csv\.gz': the file ends too early"),
    "not.csv.gz": ("text\nx\n", r"not\.csv\.gz': "),
    "empty.csv": ("", r"empty\.csv': there are no rows"),
    "header.csv": ("a,b\n", r"header\.csv': there are no rows"),
    "empty.jsonl": ("", r"empty\.jsonl': there are no rows"),
    "empty.txt": ("", r"empty\.txt': there are no rows"),
    "what.dat": ("x", r"endings of what\.dat tell no common format; set \[data\]\.format to one of csv, "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_cannot_be_read_are_named(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content, message = REFUSED[name]
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message):
        read(path)
    assert capfd.readouterr() == ("", "")


def test_of_several_files_the_bad_one_is_named(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a.csv", "a,b\n1,2\n"), write(tmp_path / "b.csv", "a,b\n1,2\n1,2,3\n")
    with pytest.raises(DataError, match=r"^split 'train': '[^']*b\.csv': "):
        read([good, bad])


def test_files_with_other_columns_are_refused_together(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.csv", "a,b\n1,2\n"), write(tmp_path / "b.csv", "a,c\n1,2\n")]
    with pytest.raises(DataError, match=r"not all files have the same columns: .*a\.csv' has 'a', 'b', .*'a', 'c'$"):
        read(files)
    lines = [write(tmp_path / "a.jsonl", '{"a": 1}\n'), write(tmp_path / "b.jsonl", '{"a": 1, "b": 2}\n')]
    with pytest.raises(DataError, match=r"not all files, or not all parts of one, have the same columns.*[\w)]$"):
        read(lines)


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder").mkdir()
    for given, message in {
        "no*.csv": "there is no file",
        "pipe.csv": "neither a file nor",
        "folder": "is a folder",
    }.items():
        with pytest.raises(DataError, match=message):
            read(str(tmp_path / given), format="csv")


def test_pictures_are_not_streamed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\[data\]\.streaming reads text and tables, not 'imagefolder'"):
        read_files(Data(files={"train": str(tmp_path)}), ["train"], streamed="train")


def test_real_csv_has_all_its_rows(shared_data: Path) -> None:
    sizes = {"train": 3668, "validation": 408, "test": 1725}
    data = Data(files={split: str(shared_data / "mrpc" / f"{split}.csv") for split in sizes})
    assert {split: len(rows) for split, rows in read_files(data, list(sizes)).items()} == sizes
