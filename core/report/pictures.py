"""Images of rows, with the boxes, masks or maps that are right and that were predicted drawn over them."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskrecipe.report.evidence import Evidence
from taskrecipe.report.maps import PALETTE, draw_map
from taskrecipe.report.objects import unpack_mask

LOWEST_SCORE = 0.3
"""Objects with a lower score are not drawn, unless all are."""
MOST_SHAPES = 30


@dataclass(frozen=True)
class Box:
    """A box to draw, in pixels of the picture."""

    x: float
    y: float
    width: float
    height: float
    name: str
    color: int


@dataclass(frozen=True)
class Picture:
    """An image with what is drawn over it."""

    title: str
    key: str
    """Names the image, so that several pictures can share it."""
    width: float
    height: float
    image: str | None = None
    """The image itself, a JPEG in base64; None where an earlier picture of the same key has it."""
    layer: str | None = None
    """A PNG in base64 to lay over it."""
    boxes: list[Box] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Characters that it takes in a page."""
        return len(self.image or "") + len(self.layer or "")


def make_pictures(evidence: Evidence, place: int, image: str) -> list[Picture]:
    """Make the pictures of a row: what is right, and what was predicted; one alone where there is nothing to draw."""
    answers = {"right": evidence.references[place], "predicted": evidence.predictions[place]}
    width, height = find_size(evidence, place, base64.b64decode(image))
    key = f"image-{evidence.split}-{evidence.rows[place]}"
    if evidence.kind not in ("objects", "maps"):
        return [Picture("", key, width, height, image)]
    pictures = []
    for number, (title, answer) in enumerate(answers.items()):
        layer, boxes = _draw_answer(answer, evidence.labels)
        pictures.append(Picture(title, key, width, height, None if number else image, layer, boxes))
    return pictures


def find_size(evidence: Evidence, place: int, thumbnail: bytes) -> tuple[float, float]:
    """Return the size of the whole image, which boxes are measured in: from a mask, or from the thumbnail."""
    for answer in (evidence.references[place], evidence.predictions[place]):
        for mask in _list_masks(answer):
            height, width = mask["size"]
            return float(width), float(height)
    return _read_size(thumbnail)


def _list_masks(answer: Any) -> list[dict[str, Any]]:
    """Return the masks of an answer: one for each object, or one for each class."""
    if isinstance(answer, dict):
        return list((answer.get("masks") or {}).values())
    return [one["mask"] for one in answer or [] if "mask" in one]


def _read_size(content: bytes) -> tuple[float, float]:
    """Read the size that a JPEG names in a comment, as thumbnails do, or else its own.

    Pillow may not be installed where a report is made.
    """
    place = 2
    while place + 9 < len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        segment = content[place + 4 : place + 2 + length]
        if marker == 0xFE and (named := re.fullmatch(rb"([1-9]\d*)x([1-9]\d*)", segment)):
            return float(named[1]), float(named[2])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = (int.from_bytes(segment[at : at + 2], "big") for at in (1, 3))
            return float(width or 1), float(height or 1)
        place += 2 + length
    return 256.0, 256.0


def _draw_answer(answer: Any, labels: Sequence[str]) -> tuple[str | None, list[Box]]:
    if isinstance(answer, dict):
        return draw_map(answer, labels), []
    objects = [one for one in answer or [] if one.get("score", 1.0) >= LOWEST_SCORE] or list(answer or [])
    objects = objects[:MOST_SHAPES]
    boxes = [_box(one, labels) for one in objects if "box" in one]
    return _draw_masks([one for one in objects if "mask" in one], labels), boxes


def _box(one: dict[str, Any], labels: Sequence[str]) -> Box:
    name = str(one.get("label"))
    score = f" {one['score']:.2f}" if "score" in one else ""
    x, y, width, height = (float(value) for value in one["box"])
    return Box(x, y, width, height, f"{name}{score}", _color(name, labels))


def _draw_masks(objects: Sequence[dict[str, Any]], labels: Sequence[str]) -> str | None:
    """Draw all masks into one transparent PNG, in the colors of their classes."""
    if not objects:
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    height, width = objects[0]["mask"]["size"]
    canvas = np.zeros((height, width), dtype=np.uint8)
    for one in reversed(objects):  # the surest is drawn last
        canvas[unpack_mask(one["mask"])] = 1 + _color(str(one.get("label")), labels)
    image = Image.fromarray(canvas, mode="P")
    image.putpalette([0, 0, 0, *(value for color in PALETTE for value in color)])
    image.thumbnail((256, 256), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, transparency=0)
    return base64.b64encode(buffer.getvalue()).decode()


def _color(name: str, labels: Sequence[str]) -> int:
    return (labels.index(name) if name in labels else len(labels)) % len(PALETTE)
