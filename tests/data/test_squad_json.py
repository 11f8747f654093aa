"""SQuAD's json as it is downloaded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from taskrecipe.data.files import read_files
from taskrecipe.errors import DataError
from taskrecipe.spec.spec import Data

ANSWERED = {
    "id": "q1",
    "question": "Where?",
    "answers": [{"text": "here", "answer_start": 3}, {"text": "it is", "answer_start": 0}],
}
IMPOSSIBLE = {
    "id": "q2",
    "question": "When?",
    "answers": [],
    "is_impossible": True,
    "plausible_answers": [{"text": "now", "answer_start": 8}],
}


def content(*questions: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "v2.0",
        "data": [
            {"title": "Places", "paragraphs": [{"context": "it is here now", "qas": list(questions)}]},
            {"title": "None", "paragraphs": []},
        ],
    }


def read(path: Path, value: object) -> Any:
    text = json.dumps(value).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return read_files(Data(files={"train": str(path)}), ["train"])["train"]


@pytest.mark.parametrize("name", ["train-v2.0.json", "train-v2.0.json.gz"])
def test_each_question_becomes_a_row(name: str, tmp_path: Path) -> None:
    rows = read(tmp_path / name, content(ANSWERED, IMPOSSIBLE))
    first = {"id": "q1", "title": "Places", "context": "it is here now", "question": "Where?"}
    assert rows[0] == {**first, "answers": {"text": ["here", "it is"], "answer_start": [3, 0]}}
    assert (rows[1]["id"], rows[1]["answers"]) == ("q2", {"text": [], "answer_start": []})
    assert len(rows) == 2


def test_rows_with_a_column_data_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"data": ["x"], "text": "a"}\n{"data": ["y"], "text": "b"}\n')
    assert read_files(Data(files={"train": str(path)}), ["train"])["train"]["text"] == ["a", "b"]


REFUSED: dict[str, tuple[object, str]] = {
    "no context": ({"data": [{"title": "T", "paragraphs": [{"qas": [ANSWERED]}]}]}, r"article 0 \('T'\): 'context' is"),
    "no question": (content({"id": "q"}), "'question' is missing"),
    "answers of another kind": (content({**ANSWERED, "answers": ["here"]}), "article 0"),
    "start that is no number": (
        content({**ANSWERED, "answers": [{"text": "here", "answer_start": "x"}]}),
        "article 0 .*invalid literal",
    ),
    "question that is no text": (content({**ANSWERED, "question": None}), "'question' is 'None', not a text"),
    "no questions": (content(), "there are no questions in '.*a.json'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_squad_is_refused_with_its_file_and_article(name: str, tmp_path: Path) -> None:
    value, message = REFUSED[name]
    with pytest.raises(DataError, match=f"^split 'train': .*{message}"):
        read(tmp_path / "a.json", value)


def test_a_given_format_is_kept_to(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[]")
    with pytest.raises(DataError, match="is not SQuAD json: it needs 'data'"):
        read_files(Data(files={"train": str(path)}, format="squad"), ["train"])
