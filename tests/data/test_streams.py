"""Blocks of a stream are the same rows wherever reading begins."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from taskrecipe.data.files import read_files
from taskrecipe.data.streams import fix_types, read_blocks, store_stream
from taskrecipe.errors import DataError
from taskrecipe.spec.spec import Data


def stream(paths: list[Path]) -> Any:
    data = Data(files={"train": [str(path) for path in paths]}, streaming=True)
    return read_files(data, ["train"], streamed="train")["train"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files of 10 rows."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_text("".join(json.dumps({"n": 10 * number + row}) + "\n" for row in range(10)))
    return paths


@pytest.mark.parametrize("size", [7, 10, 31])
def test_every_start_gives_the_tail_of_the_whole(size: int, files: list[Path]) -> None:
    whole = [list(block["n"]) for block in read_blocks(stream(files), size)]
    assert list(chain.from_iterable(whole)) == list(range(30))
    assert {len(block) for block in whole[:-1]} <= {size}
    for start in range(len(whole) + 2):
        assert [list(block["n"]) for block in read_blocks(stream(files), size, start)] == whole[start:]


def test_a_later_row_of_another_type_is_refused_not_read_as_another_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n\n" + "1\n" * 10_000 + "x\n" * 10)  # types are told anew after 10,000 rows
    rows, head = fix_types(stream([path]))
    assert head is not None
    assert rows.features == head.features
    read = read_blocks(rows, 4000)
    assert [next(read).features for _ in range(2)] == [head.features] * 2
    with pytest.raises(DataError, match="rows 8000 to 11999: "):
        list(read)


def test_a_limit_holds(files: list[Path]) -> None:
    assert store_stream(stream(files).take(13))["n"] == list(range(13))


def test_a_bad_line_far_down_is_an_error_with_its_rows(files: list[Path]) -> None:
    files[1].write_text('{"n": 1}\n{"n": \n')
    with pytest.raises(DataError, match=r"split 'train': rows \d+ to \d+: JSON parse error"):
        list(read_blocks(stream(files), 5))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "ok"}\n{"text": "é"}\n'.encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        list(read_blocks(stream([path]), 5))
