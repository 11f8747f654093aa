"""The scores of SQuAD, as its official scripts define them: exact match and F1 of answers, in percent."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress

NO_ANSWER = ""


def normalized(answer: str) -> str:
    """The answer in small letters, without punctuation, articles and superfluous space."""
    bare = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(predicted: str, right: str) -> float:
    """1 if the answers are the same, else 0."""
    return float(normalized(predicted) == normalized(right))


def f1(predicted: str, right: str, silence: float = 0.0) -> float:
    """The harmonic mean of precision and recall of the words; `silence` where neither answer has any."""
    words, wanted = normalized(predicted).split(), normalized(right).split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else silence * (words == wanted)


def scores(predicted: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """The scores of SQuAD 1.1: each prediction against the nearest of its right answers."""
    pairs = list(zip(predicted, answers, strict=True))
    return {
        "f1": _percent(max(f1(text, right) for right in rights) for text, rights in pairs),
        "exact_match": _percent(max(exact_match(text, right) for right in rights) for text, rights in pairs),
    }


def scores_with_silence(predicted: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """The scores of SQuAD 2.0, where some questions have no answer, and giving none is right for those alone."""
    rights = [[right for right in each if normalized(right)] or [NO_ANSWER] for each in answers]
    pairs = list(zip(predicted, rights, strict=True))
    overlaps = [max(f1(text, right, silence=1.0) for right in each) for text, each in pairs]
    matches = [max(exact_match(text, right) for right in each) for text, each in pairs]
    answerable = [each != [NO_ANSWER] for each in rights]
    return {
        "f1": _percent(overlaps),
        "exact_match": _percent(matches),
        "has_answer_f1": _percent(compress(overlaps, answerable)),
        "has_answer_exact_match": _percent(compress(matches, answerable)),
        "no_answer_accuracy": _percent(compress(matches, [not each for each in answerable])),
    }


def _percent(values: Iterable[float]) -> float:
    values = list(values)
    return 100 * math.fsum(values) / len(values) if values else math.nan
