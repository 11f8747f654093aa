"""Pieces of text as a person reads them, and what their roles mean."""

from __future__ import annotations

from taskrecipe.description import DescribedText, Description, Piece, Role
from taskrecipe.system.terminal import printable

MEANINGS: dict[Role, str] = {
    "context": "read only",
    "trained": "trained on",
    "target": "target",
    "masked": "masked → what was there",
    "special": "special token",
    "padding": "padding",
    "cut": "cut off",
}
"""What each role means, in the order of a legend."""


def read_piece(piece: Piece) -> str:
    """Return the text of a piece without control characters, with a space before it where a word begins."""
    text = piece.text if piece.surface is None else piece.surface
    return printable(text.replace("\n", "⏎").replace("\t", "⇥"))


def read_token(token: str) -> str:
    """Return a token without the marks of its vocabulary."""
    return printable(token.removeprefix("##").replace("Ġ", "").replace("▁", "").replace("Ċ", "⏎"))


def find_roles(descriptions: list[Description]) -> list[Role]:
    """Return the roles that occur, in the order of a legend."""
    texts = [one for one in descriptions if isinstance(one, DescribedText)]
    present = {piece.role for text in texts for line in text.lines for piece in line}
    return [role for role in MEANINGS if role in present]
