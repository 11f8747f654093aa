"""Conversations as the model's template writes them, and which of their tokens an assistant says.

Nothing is searched for in the text. The conversation is rendered up to each turn: what comes after the beginning of an
assistant's turn and before its end was said by the assistant. That needs a template whose text for the first turns is
the beginning of its text for all turns. Where it isn't, the row is refused and the place is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe.contrib.chat.formats import Message

SHOWN = 40
"""Characters of a text that are shown where renderings disagree."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Encoded:
    """The tokens of a conversation, and which of them are trained on."""

    ids: list[int]
    trained: NDArray[np.bool_]


class ChatTemplate:
    """The template of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # Longest first, so that a token that ends with another one is found whole.
        tokens = {str(token) for token in tokenizer.added_tokens_decoder.values()}
        self.ends = tuple(sorted(tokens | set(tokenizer.all_special_tokens), key=len, reverse=True))

    def render(self, messages: Sequence[Message], tools: list[Any] | None = None, *, prompt: bool = False) -> str:
        """Return the text of a conversation; with `prompt` also the beginning of the assistant's next turn.

        Raise `ValueError` with what the template says against it.
        """
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"the chat template refuses it: {error}") from error
        return text

    def find_turns(self, messages: Sequence[Message], tools: list[Any] | None, *, last: bool) -> tuple[str, list[Span]]:
        """Return the text of a conversation, and where in it the assistant speaks: at all turns, or at the last."""
        text = self.render(messages, tools)
        turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        spans: list[Span] = []
        for number in turns[-1:] if last else turns:
            before = self.render(messages[:number], tools, prompt=True)
            through = self.render(messages[: number + 1], tools)
            _require_prefix(before, through, number, "with the beginning of the answer")
            _require_prefix(through, text, number, "to its end")
            _require_prefix(before, text, number, "with the beginning of the answer")
            spans.append((len(before), self._find_end(through, len(before))))
        return text, spans

    def encode(self, text: str, spans: Sequence[Span]) -> Encoded:
        """Return the tokens of a rendered text. A token is never cut by the beginning of a turn."""
        ids, trained = self._encode_once(text, spans, [])
        if ids is None:
            ids, trained = self._encode_once(text, spans, [start for start, _ in spans])
        return Encoded(ids or [], trained)

    def encode_prompt(self, messages: Sequence[Message], tools: list[Any] | None) -> list[int]:
        """Return the tokens that the model continues with its answer."""
        return self.encode(self.render(messages, tools, prompt=True), []).ids

    def _find_end(self, through: str, start: int) -> int:
        """Return where a turn ends: after the token that ends it. White space after that is never generated."""
        stripped = through.rstrip()
        return len(stripped) if len(stripped) > start and stripped.endswith(self.ends) else len(through)

    def _encode_once(
        self, text: str, spans: Sequence[Span], cuts: list[int]
    ) -> tuple[list[int] | None, NDArray[np.bool_]]:
        """Encode the pieces between `cuts`. Return None where a token holds the end of a prompt and an answer's start.

        The model gets the prompt alone when it answers, so its tokens must be those of the prompt alone.
        """
        ids: list[int] = []
        places: list[Span] = []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            made = self.tokenizer(text[start:end], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            ids += made["input_ids"]
            places += [(start + a, start + b) for a, b in made["offset_mapping"]]
        starts, ends = np.array(places, dtype=np.int64).reshape(-1, 2).T
        trained = np.zeros(len(ids), dtype=bool)
        for first, last in spans:
            if not cuts and ((starts < first) & (ends > first)).any():
                return None, trained
            trained |= (starts >= first) & (starts < last)
        return ids, trained


def _require_prefix(part: str, whole: str, number: int, what: str) -> None:
    if whole.startswith(part):
        return
    place = next((i for i, (a, b) in enumerate(zip(part, whole, strict=False)) if a != b), min(len(part), len(whole)))
    raise ValueError(
        f"the chat template writes message {number} in another way once more messages follow, so what the assistant "
        f"says there can't be told from the rest: rendered up to it ({what}) the text goes on with "
        f"{part[place : place + SHOWN]!r} at character {place}, in the whole conversation with "
        f'{whole[place : place + SHOWN]!r}. Train on the last turn only ([task].turns = "last"), or give a template '
        "that writes every turn in one way ([task].template)"
    )
