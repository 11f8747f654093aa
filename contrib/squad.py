"""Answers as SQuAD has them: their shape in rows, and their scores.

The scores are those of SQuAD's official scripts: exact match and F1 of answers, in percent.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taskrecipe import DataError, Row

if TYPE_CHECKING:
    from datasets import Dataset

NO_ANSWER = ""

# Rows -----------------------------------------------------------------------------------------------


def read_answers(answers: Row | None, key: str) -> list[Any]:
    """Return the answers' values of a key. No answer may also be written as null."""
    return (answers or {}).get(key) or []


def check_answers(rows: Dataset, split: str, required: bool) -> None:
    """Refuse answers that are not in the context where they say, and, if `required`, a row without any."""
    _check_shape(rows, split)
    for number, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True)):
        if problem := _find_problem(context, answers, required):
            raise DataError(problem, split=split, row=number, column="answers")


def _check_shape(rows: Dataset, split: str) -> None:
    """Refuse answers of another shape than SQuAD's."""
    found = rows.features["answers"]
    lists = (
        [getattr(found.get(key), "feature", None) for key in ("text", "answer_start")]
        if isinstance(found, dict)
        else []
    )
    kinds = [str(getattr(inner, "dtype", inner)) for inner in lists]
    # Where no row has an answer, lists are of nothing.
    if not kinds or not re.fullmatch("(large_)?string|null", kinds[0]) or not re.fullmatch(r"u?int\d+|null", kinds[1]):
        raise DataError(
            f"answers must be {{text: [...], answer_start: [...]}}, texts and whole numbers; found {found}",
            split=split,
            column="answers",
        )


def _find_problem(context: str, answers: Row | None, required: bool) -> str | None:
    """Return what is wrong with a row's answers, if anything is."""
    texts, starts = read_answers(answers, "text"), read_answers(answers, "answer_start")
    if len(texts) != len(starts):
        return f"every answer needs the character it begins at; found {len(texts)} answers and {len(starts)} places"
    if not texts and required:
        return "there is no answer; if that may be so, set [task].no_answer = true"
    for text, start in zip(texts, starts, strict=True):
        if not (text and isinstance(start, int) and start >= 0 and context.startswith(text, start)):
            return f"answer {text!r} does not stand at character {start} of the context"
    return None


# Scores ---------------------------------------------------------------------------------------------


def normalize_answer(answer: str) -> str:
    """Return the answer in small letters, without punctuation, articles and superfluous space."""
    bare = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(predicted: str, right: str) -> float:
    """Return 1 if the answers are the same, else 0."""
    return float(normalize_answer(predicted) == normalize_answer(right))


def f1(predicted: str, right: str, silence: float = 0.0) -> float:
    """Return the harmonic mean of precision and recall of the words; `silence` where neither answer has any."""
    words, wanted = normalize_answer(predicted).split(), normalize_answer(right).split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else silence * (words == wanted)


def score_answers(predicted: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the scores of SQuAD 1.1: each prediction against the nearest of its right answers."""
    return _percents(measure_answers(predicted, answers))


def measure_answers(predicted: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Return the scores of each prediction, from 0 to 1, as in SQuAD 1.1."""
    pairs = list(zip(predicted, answers, strict=True))
    return {
        "f1": [max(f1(text, right) for right in rights) for text, rights in pairs],
        "exact_match": [max(exact_match(text, right) for right in rights) for text, rights in pairs],
    }


def score_with_silence(predicted: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the scores of SQuAD 2.0: some questions have no answer, and giving none is right for those alone."""
    return _percents(measure_with_silence(predicted, answers))


def measure_with_silence(predicted: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Return the scores of each prediction, from 0 to 1, as in SQuAD 2.0; NaN where a score leaves the question out."""
    rights = [[right for right in each if normalize_answer(right)] or [NO_ANSWER] for each in answers]
    pairs = list(zip(predicted, rights, strict=True))
    overlaps = [max(f1(text, right, silence=1.0) for right in each) for text, each in pairs]
    matches = [max(exact_match(text, right) for right in each) for text, each in pairs]
    answerable = [each != [NO_ANSWER] for each in rights]
    return {
        "f1": overlaps,
        "exact_match": matches,
        "has_answer_f1": _only_if(answerable, overlaps),
        "has_answer_exact_match": _only_if(answerable, matches),
        "no_answer_accuracy": _only_if([not each for each in answerable], matches),
    }


def _only_if(counts: Sequence[bool], values: Sequence[float]) -> list[float]:
    return [value if counted else math.nan for value, counted in zip(values, counts, strict=True)]


def _percents(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: _percent([value for value in values if value == value]) for name, values in measured.items()}


def _percent(values: Sequence[float]) -> float:
    return 100 * math.fsum(values) / len(values) if values else math.nan
