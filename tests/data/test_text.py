"""Texts: a row without one is refused, an odd one is counted."""

from __future__ import annotations

import time
from typing import Any

import pytest
from datasets import Dataset

from taskrecipe.data.text import check_text
from taskrecipe.errors import DataError


def rows(values: list[Any]) -> Dataset:
    return Dataset.from_dict({"text": values})


def test_plain_texts_pass_in_silence() -> None:
    check_text(rows(["one", "two", "Größe 尺寸"]), "train", "text")


REFUSED: dict[str, tuple[list[Any], int, str]] = {
    "none": (["a", None, None], 1, "there is no text, as in 2 of 3 rows"),
    "numbers": ([1, 2], 0, "1 is not a text"),
    "lists": ([["a"]], 0, r"\['a'\] is not a text"),
    "nothing at all": ([None, None], 0, "there is no text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_text_is_refused(name: str) -> None:
    values, row, message = REFUSED[name]
    with pytest.raises(DataError, match=message) as caught:
        check_text(rows(values), "train", "text")
    assert (caught.value.split, caught.value.row, caught.value.column) == ("train", row, "text")


TOLD = {
    "blank": (["a", "", " \t\n", "\u3000"], "3 of 4 texts are blank, the first in row 1"),
    "NUL": (["a", "b\0c"], "1 of 2 texts hold NUL characters, the first in row 1"),
    "long": (["x" * 10_000_000, "a"], "1 of 2 texts are a megabyte or longer, the first in row 0"),
}


@pytest.mark.parametrize("name", TOLD)
def test_odd_texts_are_counted(name: str) -> None:
    values, message = TOLD[name]
    started = time.process_time()
    with pytest.warns(UserWarning, match=f"split 'train', column 'text': {message}"):
        check_text(rows(values), "train", "text")
    assert time.process_time() - started < 2
