"""A preview as one HTML page: it needs no network, and is readable on a phone, in light and in dark."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.description import DescribedImage, DescribedText, Description, Piece
from taskrecipe.previews.image_files import encode_png, paint_masks
from taskrecipe.previews.pieces import MEANINGS, find_roles, read_piece, read_token
from taskrecipe.previews.tables import make_tables
from taskrecipe.system.terminal import printable

if TYPE_CHECKING:
    from PIL.Image import Image

    from taskrecipe.previews.examples import Example
    from taskrecipe.previews.preview import Preview

MOST_PIECES = 4000
"""Tokens of a line that are shown."""

LARGEST_SIDE = 1024
"""Images are made smaller for the page if a side is longer."""


def render_page(preview: Preview) -> str:
    """Return the page of a preview."""
    from jinja2 import Environment, StrictUndefined

    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    examples = [_show_example(preview, example) for example in preview.examples]
    return environment.from_string(template).render(
        preview=preview,
        examples=examples,
        masks=any(one.picture and one.picture["masks"] for example in examples for one in example["shown"]),
        tables=make_tables(preview.statistics, preview.order),
        legend=[(role, MEANINGS[role]) for role in find_roles([one.description for one in preview.examples])],
        colors=preview.colors,
    )


def frame_page(page: str) -> str:
    """Return the page inside a frame, as notebooks show it."""
    return (
        '<iframe style="width:100%;height:640px;border:1px solid #8884;border-radius:6px" '
        f'sandbox="allow-same-origin" srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )


@dataclass(frozen=True)
class Shown:
    """One description, ready for the template."""

    lines: list[dict[str, Any]]
    picture: dict[str, Any] | None
    facts: dict[str, str]


def _show_example(preview: Preview, example: Example) -> dict[str, Any]:
    variants = preview.variants(example)
    shown = [_show(one, preview.colors) for one in variants]
    return {
        "title": f"{example.split} row {example.row}",
        "about": [
            *([f"micro-batch {example.batch}"] if example.batch else []),
            *([printable(example.source)] if example.source else []),
        ],
        "shown": [_show(example.description, preview.colors), *shown[1:]],
        "varies": bool(shown),
        "epoch": example.epoch,
    }


def _show(described: Description, colors: Mapping[str, str]) -> Shown:
    facts = {printable(name): printable(value) for name, value in described.facts.items()}
    if isinstance(described, DescribedText):
        return Shown(_show_lines(described), None, facts)
    return Shown([], _show_picture(described, colors), facts)


def _show_lines(described: DescribedText) -> list[dict[str, Any]]:
    return [
        {
            "name": printable(described.names[number]) if number < len(described.names) else "",
            "pieces": [_show_piece(piece) for piece in line[:MOST_PIECES]],
            "more": max(0, len(line) - MOST_PIECES),
        }
        for number, line in enumerate(described.lines)
    ]


def _show_piece(piece: Piece) -> dict[str, Any]:
    text = read_piece(piece)
    spaced = piece.surface is None or text.startswith(" ")
    return {"text": text.strip(" ") or " ", "role": piece.role, "note": read_token(piece.note), "spaced": spaced}


def _show_picture(described: DescribedImage, colors: Mapping[str, str]) -> dict[str, Any]:
    """Return the image and its masks as data, and the boxes as numbers; the page draws them."""
    masks = paint_masks(described, colors)
    width, height = described.image.size
    shapes = [
        {"label": printable(shape.label), "box": _edges(shape.box)}
        for shape in described.shapes
        if shape.box is not None
    ]
    return {
        "data": _encode_image(described.image),
        "masks": None if masks is None else _encode_data("png", encode_png(_shrink(masks))),
        "width": width,
        "height": height,
        "small": max(width, height) < 200,
        "line": max(width, height) / 160,
        "shapes": shapes,
        "labels": sorted({printable(shape.label) for shape in described.shapes}),
    }


def _edges(box: tuple[float, float, float, float]) -> dict[str, float]:
    left, top, right, bottom = box
    return {"x": round(left, 1), "y": round(top, 1), "w": round(right - left, 1), "h": round(bottom - top, 1)}


def _encode_image(image: Image) -> str:
    """Return a data URI: small images without loss, photographs as JPEG."""
    image = _shrink(image)
    if max(image.size) < 200:
        return _encode_data("png", encode_png(image))
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=85)
    return _encode_data("jpeg", buffer.getvalue())


def _shrink(image: Image) -> Image:
    if max(image.size) <= LARGEST_SIDE:
        return image
    made = image.copy()
    made.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return made


def _encode_data(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
