"""What recipes on conversations share: the tokenizer with its template, and rows that are refused, left out or cut."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe import DataError, Row, UsageError
from taskrecipe.contrib.chat.formats import Message
from taskrecipe.contrib.chat.options import ConversationOptions
from taskrecipe.contrib.chat.rendering import ChatTemplate

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe import ModelSource

LISTED = 20
"""Row numbers that a message lists at most."""

PROBE: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def load_chat_tokenizer(source: ModelSource, options: ConversationOptions) -> Any:
    """Load the tokenizer with the template that is used: the one that is given as a file, or its own."""
    from taskrecipe.text import require_length

    tokenizer = source.tokenizer()
    if not tokenizer.is_fast:
        raise UsageError("conversations need a fast tokenizer, which knows from where in a text a token is")
    if options.template and not source.exported:  # a trained model brings the template that it was trained with
        tokenizer.chat_template = _read_template(options.template)
    if not tokenizer.chat_template:
        raise UsageError(
            f"{str(source.processor or source.name)!r} has no chat template; give one as a file ([task].template), "
            "or name the instruction-tuned version of the model"
        )
    require_length(source, tokenizer, "[task].max_length", options.max_length)
    try:
        find_end_of_turn(tokenizer)
    except ValueError as error:
        raise UsageError(f"the chat template can't be used for a question and its answer: {error}") from error
    return tokenizer


def find_end_of_turn(tokenizer: Any) -> int | None:
    """Return the token that ends the assistant's turns; None if the template has no special token for it."""
    template = ChatTemplate(tokenizer)
    encoded = template.encode(*template.find_turns(PROBE, None, last=True))
    said = [token for token, trained in zip(encoded.ids, encoded.trained, strict=True) if trained]
    ends = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    return said[-1] if said and said[-1] in ends else None


def check_rows(rows: Dataset, split: str, column: str, read: Callable[[Row], object]) -> None:
    """Call `read` for every row, and refuse those for which it raises `ValueError`: all are named at once."""
    problems: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            read(row)
        except ValueError as error:
            problems[number] = str(error)
    raise_problems(problems, split, column)


def raise_problems(problems: Mapping[int, str], split: str, column: str) -> None:
    """Raise `DataError` for the first of these rows, with the numbers of the others."""
    if not problems:
        return
    first, message = next(iter(problems.items()))
    others = f" ({len(problems)} rows are refused: {list_numbers(list(problems))})" if len(problems) > 1 else ""
    raise DataError(f"{message}{others}", split=split, row=first, column=column)


def list_numbers(numbers: Sequence[int]) -> str:
    """Return row numbers as a text; only the first if there are many."""
    shown = ", ".join(map(str, numbers[:LISTED]))
    return shown if len(numbers) <= LISTED else f"{shown} … {len(numbers) - LISTED} more"


def handle_overflow(
    lengths: NDArray[np.int64], options: ConversationOptions, split: str, column: str
) -> NDArray[np.bool_]:
    """Return which rows stay. Raise, or warn of what is left out or cut, as the spec says."""
    long = lengths > options.max_length
    if not long.any():
        return ~long
    numbers = np.flatnonzero(long)
    what = f"{len(numbers)} of {len(lengths)} rows have more than {options.max_length} tokens"
    if options.overflow == "error":
        first = int(numbers[0])
        raise DataError(
            f"{what}, this one {lengths[first]} (rows {list_numbers(numbers.tolist())}); raise [task].max_length, or "
            'set [task].overflow to "drop" or "cut"',
            split=split,
            row=first,
            column=column,
        )
    fate = "are left out" if options.overflow == "drop" else "are cut"
    lost = int(lengths[long].sum() if options.overflow == "drop" else (lengths[long] - options.max_length).sum())
    warnings.warn(f"{split}: {what} and {fate}, {lost} of {lengths.sum()} tokens with them", stacklevel=2)
    return ~long if options.overflow == "drop" else np.ones(len(lengths), dtype=bool)


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"[task].template: {path!r} can't be read: {error}") from error
