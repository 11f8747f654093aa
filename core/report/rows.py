"""Single rows to look at: the worst, some at random, and those behind the cells of a confusion matrix."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskrecipe.report.classes import ClassPairs
from taskrecipe.report.evidence import Evidence
from taskrecipe.report.pictures import LOWEST_SCORE, Picture, make_pictures
from taskrecipe.system.quantities import format_number

WORST, RANDOM = 50, 20
ROWS_OF_CELL, ROWS_OF_CELLS = 8, 240
"""Rows that are kept for one cell of a confusion matrix, and for all of them."""
LONGEST = 700
"""Characters of a text that are shown."""


@dataclass(frozen=True)
class ShownRow:
    """A row as a person reads it."""

    row: int
    source: str | None
    fields: list[tuple[str, str]]
    """Names and texts of its input."""
    facts: str
    """What else its input holds, such as numbers."""
    reference: str
    prediction: str
    confidence: float | None
    loss: float | None
    correct: bool | None
    sets: list[str]
    """Why it is shown: worst, random, cell."""
    cell: str = ""
    """The cell of the confusion matrix that it is in, as its labels joined by a line end."""
    pictures: list[Picture] = field(default_factory=list)


def show_rows(evidence: Evidence, pairs: ClassPairs | None, share: float, images: list[int]) -> list[ShownRow]:
    """Choose rows and make them readable. `share` cuts their number; `images` holds how many bytes are left."""
    chosen = choose_rows(evidence, pairs, share)
    cells = _name_cells(pairs)
    return [_show(evidence, place, sets, cells.get(place, ""), images) for place, sets in chosen.items()]


def choose_rows(evidence: Evidence, pairs: ClassPairs | None, share: float = 1.0) -> dict[int, list[str]]:
    """Return the places of the rows to show, the worst first, and why each is shown."""
    chosen: dict[int, list[str]] = {place: ["worst"] for place in evidence.worst[: round(WORST * share)]}
    for place in _draw(evidence, round(RANDOM * share), set(chosen)):
        chosen.setdefault(place, []).append("random")
    for place in _rows_of_cells(evidence, pairs, round(ROWS_OF_CELLS * share)) if pairs else []:
        chosen.setdefault(place, []).append("cell")
    return chosen


def summarize_answer(answer: Any) -> str:
    """Write an answer in a line or two: a class, a number, a text, what is on an image."""
    if answer is None:
        return "–"
    if isinstance(answer, list) and all(isinstance(one, dict) and "label" in one for one in answer):
        return _summarize_objects(answer)
    if isinstance(answer, dict):
        for key in ("label", "text", "answer", "value", "ending"):
            if key in answer and not ("entities" in answer and key == "text"):
                return _plain(answer[key])
        if isinstance(answer.get("classes"), dict):
            return ", ".join(f"{name} {share:.0%}" for name, share in answer["classes"].items())
        if isinstance(answer.get("entities"), list):
            return "; ".join(_summarize_entity(one) for one in answer["entities"]) or "no entities"
        answer = {name: value for name, value in answer.items() if not _is_vector(value)}
    return _plain(answer)


def _draw(evidence: Evidence, count: int, taken: set[int]) -> list[int]:
    """Draw rows at random, the same ones every time: of images those that have a thumbnail."""
    pictured = [place for place, image in enumerate(evidence.thumbnails) if image is not None and place not in taken]
    candidates = pictured or list(range(len(evidence.rows)))
    drawn = np.random.default_rng(0).permutation(len(candidates))[:count]
    return sorted(candidates[number] for number in drawn)


def _rows_of_cells(evidence: Evidence, pairs: ClassPairs, most: int) -> list[int]:
    """Return some rows of every cell, those of mistakes before those of what is right."""
    rank = {place: number for number, place in enumerate(evidence.worst)}
    order = sorted(
        range(len(pairs.places)), key=lambda k: (pairs.right[k] == pairs.predicted[k], rank[int(pairs.places[k])])
    )
    taken: Counter[tuple[int, int]] = Counter()
    chosen: list[int] = []
    for k in order:
        cell = int(pairs.right[k]), int(pairs.predicted[k])
        if taken[cell] < ROWS_OF_CELL and len(chosen) < most:
            taken[cell] += 1
            chosen.append(int(pairs.places[k]))
    return chosen


def _name_cells(pairs: ClassPairs | None) -> dict[int, str]:
    if pairs is None:
        return {}
    found = zip(pairs.places.tolist(), pairs.right.tolist(), pairs.predicted.tolist(), strict=True)
    return {place: f"{pairs.labels[right]}\n{pairs.labels[predicted]}" for place, right, predicted in found}


def _show(evidence: Evidence, place: int, sets: list[str], cell: str, images: list[int]) -> ShownRow:
    reference, prediction = evidence.references[place], evidence.predictions[place]
    row = {name: value for name, value in evidence.inputs[place].items() if value is not None}
    thumbnail = evidence.thumbnails[place]
    pictures: list[Picture] = []
    if thumbnail is not None and len(thumbnail) * 4 // 3 <= images[0]:
        pictures = make_pictures(evidence, place, b64encode(thumbnail).decode())
        images[0] -= sum(picture.size for picture in pictures)
    correct = evidence.correct[place]
    return ShownRow(
        row=evidence.rows[place],
        source=evidence.sources[place],
        fields=[(name, _cut(_plain(value))) for name, value in row.items() if not _is_small(value)],
        facts=" · ".join(f"{name} {_plain(value)}" for name, value in row.items() if _is_small(value)),
        reference=_cut(summarize_answer(reference)),
        prediction=_cut(summarize_answer(prediction)),
        confidence=_known(evidence.confidence[place]),
        loss=_known(evidence.loss[place]),
        correct=None if np.isnan(correct) else bool(correct),
        sets=sets,
        cell=cell,
        pictures=pictures,
    )


def _summarize_objects(objects: Sequence[dict[str, Any]]) -> str:
    if not objects:
        return "nothing"
    if all("score" in one for one in objects):
        sure = [one for one in objects if one["score"] >= LOWEST_SCORE] or list(objects[:1])
        names = ", ".join(f"{one['label']} {one['score']:.2f}" for one in sure[:12])
        more = len(objects) - len(sure[:12])
        return f"{names} and {more} less sure" if more else names
    return ", ".join(f"{count} × {label}" for label, count in Counter(str(one["label"]) for one in objects).items())


def _summarize_entity(entity: Any) -> str:
    if not isinstance(entity, dict):
        return _plain(entity)
    kind = entity.get("label") or entity.get("kind") or entity.get("type") or ""
    return f"{entity.get('text', '')} ({kind})"


def _is_small(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 16 and all(isinstance(one, float) for one in value)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return " ".join(value) if sum(map(len, value)) < 8 * len(value) else " · ".join(value)
    return json.dumps(value, ensure_ascii=False)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
