"""What an example looks like to the model: text whose pieces have roles, or an image with shapes on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

Role = Literal["context", "trained", "target", "masked", "special", "padding", "cut"]
"""What a piece of text is to the model.

context: read only; trained: the model learns to predict it, or the tag in `note`; target: the answer or the text to
generate; masked: hidden, with the hidden text in `note`; special: added by the tokenizer; padding: fills up a batch;
cut: not seen, because the row is longer than the spec allows.
"""


@dataclass(frozen=True)
class Piece:
    """A stretch of text, usually a token, and its role."""

    text: str
    role: Role = "context"
    note: str = ""
    """What belongs to it, such as its tag or the token that is hidden."""
    surface: str | None = None
    """The text that a token stands for, with a space before it where a word begins; None if that is `text`."""


@dataclass(frozen=True)
class DescribedText:
    """An example on text. A row of several texts, such as choices, has several lines."""

    lines: list[list[Piece]]
    facts: dict[str, str] = field(default_factory=dict)
    """What else is known of it, such as its label."""
    names: list[str] = field(default_factory=list)
    """What each line is, such as question and context; empty if there is nothing to tell apart."""
    joined: bool = False
    """Whether the lines follow one another in one sequence of tokens; if not, each is a sequence of its own."""


@dataclass(frozen=True)
class Shape:
    """Something drawn on an image: a box of left, top, right, bottom in pixels, and a mask of the image's size."""

    label: str
    box: tuple[float, float, float, float] | None = None
    mask: Any = None


@dataclass(frozen=True)
class DescribedImage:
    """An example on an image, in pixels that can be looked at."""

    image: Image
    shapes: list[Shape] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


Description = DescribedText | DescribedImage


def describe_values(example: Mapping[str, Any], tokenizer: Any) -> DescribedText:
    """Describe any example: its tokens where a tokenizer can decode them, every other value as a fact."""
    from taskrecipe.recipe import as_json

    facts = {
        name: str(as_json(value)) for name, value in example.items() if name not in ("input_ids", "attention_mask")
    }
    if "input_ids" not in example or not hasattr(tokenizer, "convert_ids_to_tokens"):
        ids = {"input_ids": str(as_json(example["input_ids"]))} if "input_ids" in example else {}
        return DescribedText([], {**ids, **facts})
    return DescribedText([describe_tokens(example["input_ids"], tokenizer)], facts)


def describe_tokens(ids: Any, tokenizer: Any) -> list[Piece]:
    """Return the tokens as pieces, special ones marked."""
    from taskrecipe.recipe import as_json

    numbers, special = as_json(ids), set(tokenizer.all_special_ids)
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(numbers)]
    surfaces = _read_surfaces(tokens, tokenizer)
    return [
        Piece(token, "special" if number in special else "context", surface=None if number in special else surface)
        for token, number, surface in zip(tokens, numbers, surfaces, strict=True)
    ]


def split_pair(pieces: list[Piece], tokenizer: Any) -> list[list[Piece]]:
    """Split the tokens of two texts after the separators between them; tokens of one text stay together."""
    ends = {str(token) for token in (tokenizer.sep_token, tokenizer.eos_token) if token}
    is_end = [piece.role == "special" and piece.text in ends for piece in pieces]
    for place in range(1, len(pieces)):
        if is_end[place - 1] and not is_end[place]:
            return [pieces[:place], pieces[place:]]
    return [pieces]


def _read_surfaces(tokens: Sequence[str], tokenizer: Any) -> list[str]:
    """Return the text of each token, with a space before it where a word begins."""
    if any(token.startswith(("Ġ", "Ċ")) for token in tokens):  # bytes, which only the tokenizer can decode
        return [str(tokenizer.convert_tokens_to_string([token])) for token in tokens]
    if any(token.startswith("▁") for token in tokens):
        return [token.replace("▁", " ") for token in tokens]
    return [token[2:] if token.startswith("##") else f" {token}" for token in tokens]
