"""SQuAD's json, 1.1 and 2.0, as downloaded: articles of paragraphs of questions become one row for each question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.compression import open_bytes
from taskrecipe.data.read_errors import explain_read_errors
from taskrecipe.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

_START = re.compile(rb'"(paragraphs|qas|data)"\s*:\s*\[')

Row = dict[str, Any]


def is_squad_file(path: Path) -> bool:
    """Return whether a file is SQuAD's nested json, judged by its content."""
    try:
        with open_bytes(path) as file:
            head = file.read(2**16)
            if not (head.lstrip().startswith(b"{") and _START.search(head)):  # so that other files are not read whole
                return False
            return _is_squad(json.loads(head + file.read()))
    except (OSError, EOFError, ValueError):
        return False


def load_squad(paths: list[Path], split: str) -> Dataset:
    """Read the questions of all files. A question that can't be answered has no answers."""
    from datasets import Dataset, Features, List, Value

    rows: list[Row] = []
    for path in paths:
        with explain_read_errors(f"'{path}'", split), open_bytes(path) as file:
            rows += _read_file(json.loads(file.read().decode("utf-8-sig")), path, split)
    if not rows:
        raise DataError(f"there are no questions in '{paths[0]}'", split=split)
    answers = {"text": List(Value("string")), "answer_start": List(Value("int64"))}
    texts = {name: Value("string") for name in ("id", "title", "context", "question")}
    return Dataset.from_list(rows, features=Features({**texts, "answers": answers}))


def _is_squad(content: Any) -> bool:
    articles = content.get("data") if isinstance(content, dict) else None
    return (
        isinstance(articles, list) and bool(articles) and isinstance(articles[0], dict) and "paragraphs" in articles[0]
    )


def _read_file(content: Any, path: Path, split: str) -> Iterator[Row]:
    if not _is_squad(content):
        raise DataError(
            f"'{path}' is not SQuAD json: it needs 'data', a list of articles with 'paragraphs'", split=split
        )
    for number, article in enumerate(content["data"]):
        try:
            yield from _read_article(article)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            title = article.get("title") if isinstance(article, dict) else None
            raise DataError(f"'{path}': article {number} ({title!r}): {missing}", split=split) from None


def _read_article(article: dict[str, Any]) -> Iterator[Row]:
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            answers = [] if question.get("is_impossible") else question.get("answers", [])
            yield {
                "id": str(question.get("id", "")),
                "title": str(article.get("title", "")),
                "context": _require_text(paragraph, "context"),
                "question": _require_text(question, "question"),
                "answers": {
                    "text": [_require_text(answer, "text") for answer in answers],
                    "answer_start": [int(answer["answer_start"]) for answer in answers],
                },
            }


def _require_text(table: dict[str, Any], key: str) -> str:
    if not isinstance(table[key], str):
        raise TypeError(f"{key!r} is {str(table[key])[:40]!r}, not a text")
    return str(table[key])
