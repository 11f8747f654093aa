"""Pairs of a better and a worse answer: read from rows, rendered, and put into batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe import IGNORED, Batch, Column, DataError, Row
from taskrecipe.contrib.chat.formats import Message, check_message, read_tools, read_turns
from taskrecipe.contrib.chat.options import ConversationOptions
from taskrecipe.contrib.chat.preparation import handle_overflow, raise_problems
from taskrecipe.contrib.chat.rendering import ChatTemplate

if TYPE_CHECKING:
    from datasets import Dataset

SIDES = ("chosen", "rejected")
COLUMNS = {
    "prompt": Column("what is asked: a text, or turns; not needed if answers are whole conversations", required=False),
    "chosen": Column("the better answer: a text, turns, or a whole conversation"),
    "rejected": Column("the worse answer: a text, turns, or a whole conversation", required=False),
    "tools": Column("tools that the template shows to the model", required=False),
}
NOTHING = np.empty(0, dtype=np.int32)


def read_sides(row: Row) -> list[list[Message]]:
    """Return the conversation with each answer that a row has. Raise `ValueError` that says what is wrong."""
    sides = [side for side in SIDES if row.get(side) is not None]
    if not sides:
        raise ValueError("there is no answer")
    conversations = [_read_side(row, side) for side in sides]
    if len(conversations) == 2 and conversations[0] == conversations[1]:
        raise ValueError("chosen and rejected are the same")
    return conversations


def read_pair(row: Row) -> None:
    """Raise `ValueError` unless a row has two answers."""
    for side in SIDES:
        if row.get(side) is None:
            raise ValueError(f"there is no {side} answer")
    read_sides(row)
    read_tools(row)


def _read_side(row: Row, side: str) -> list[Message]:
    answer = read_turns(row[side], "assistant")
    is_whole = bool(answer) and isinstance(answer[0], Mapping) and answer[0].get("role") in ("system", "user")
    if not is_whole and row.get("prompt") is None:
        raise ValueError(f"there is no prompt, and {side} doesn't begin with one")
    messages = answer if is_whole else [*read_turns(row["prompt"], "user"), *answer]
    for number, message in enumerate(messages):
        check_message(message, number)
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError(f"{side} doesn't end with what the assistant says")
    return messages


def encode_pairs(rows: Dataset, tokenizer: Any, options: ConversationOptions, split: str) -> Dataset:
    """Return the tokens and labels of each answer with what is before it, without or with a part of long rows."""
    from taskrecipe.data import map_rows

    made = map_rows(rows, lambda batch: _encode_batch(batch, ChatTemplate(tokenizer)))
    raise_problems({number: text for number, text in enumerate(made["problem"]) if text}, split, "chosen")
    lengths: NDArray[np.int64] = np.array(
        [max(map(len, sides)) for sides in zip(*(made[f"{side}_ids"] for side in SIDES), strict=True)]
    )
    kept = handle_overflow(lengths, options, split, "chosen")
    if not kept.any():
        raise DataError("no row is left", split=split, column="chosen")
    made = made.select(np.flatnonzero(kept)) if not kept.all() else made
    cut = _cut_pairs(made, options.max_length) if lengths[kept].max() > options.max_length else made
    _require_answers(cut, split, np.flatnonzero(kept))
    return cut.remove_columns("problem")


def _encode_batch(batch: dict[str, list[Any]], template: ChatTemplate) -> dict[str, list[Any]]:
    names = [f"{side}_{kind}" for side in SIDES for kind in ("ids", "labels")]
    made: dict[str, list[Any]] = {name: [] for name in [*names, "problem"]}
    for values in zip(*batch.values(), strict=True):
        encoded: list[Any] = [NOTHING] * 4
        problem = ""
        try:
            row = dict(zip(batch, values, strict=True))
            for number, messages in enumerate(read_sides(row)):
                encoded[2 * number : 2 * number + 2] = _encode_answer(messages, read_tools(row), template)
        except ValueError as error:
            problem = str(error)
        for name, value in zip(made, [*encoded, problem], strict=True):
            made[name].append(value)
    return made


def _encode_answer(messages: list[Message], tools: list[Any] | None, template: ChatTemplate) -> tuple[Any, Any]:
    encoded = template.encode(*template.find_turns(messages, tools, last=True))
    ids = np.asarray(encoded.ids, dtype=np.int32)
    return ids, np.where(encoded.trained, ids, IGNORED).astype(np.int32)


def _cut_pairs(rows: Dataset, length: int) -> Dataset:
    from taskrecipe.data import map_rows

    names = [f"{side}_{kind}" for side in SIDES for kind in ("ids", "labels")]
    return map_rows(rows, lambda batch: {name: [one[:length] for one in batch[name]] for name in names}, ["problem"])


def _require_answers(rows: Dataset, split: str, numbers: NDArray[np.int64]) -> None:
    """Refuse rows in which nothing of an answer is left."""
    problems = {
        int(numbers[place]): f"nothing of the {side} answer is left within [task].max_length"
        for side in SIDES
        for place, labels in enumerate(rows[f"{side}_labels"])
        if len(labels) and not any(label != IGNORED for label in labels[1:])
    }
    raise_problems(dict(sorted(problems.items())), split, "chosen")


def pair_lengths(rows: Dataset) -> list[int]:
    """Return the length of each row's longer answer."""
    return [max(len(one) for one in sides) for sides in zip(*(rows[f"{side}_ids"] for side in SIDES), strict=True)]


def collate_pairs(rows: list[Row], pad_id: int) -> Batch:
    """Return tokens, labels and mask as rows x answers x length. Rows have two answers, or all have one."""
    import torch

    sides = [side for side in SIDES if len(rows[0][f"{side}_ids"])]
    width = max(len(row[f"{side}_ids"]) for row in rows for side in sides)
    shape = len(rows), len(sides), width
    ids, labels = np.full(shape, pad_id, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    for number, row in enumerate(rows):
        for place, side in enumerate(sides):
            length = len(row[f"{side}_ids"])
            ids[number, place, :length] = row[f"{side}_ids"]
            labels[number, place, :length] = row[f"{side}_labels"]
            mask[number, place, :length] = 1
    return {
        name: torch.from_numpy(value)
        for name, value in (("input_ids", ids), ("labels", labels), ("attention_mask", mask))
    }
