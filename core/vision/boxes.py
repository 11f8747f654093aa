"""Boxes: their formats, what can be wrong with them, and clipping them to an image."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float64]
"""(n, 4): left, top, right, bottom in pixels."""

Size = tuple[int, int]
"""Width and height in pixels."""

Format = Literal["coco", "voc", "yolo", "albumentations"]
"""coco: x, y, width, height in pixels; voc: left, top, right, bottom in pixels; yolo: center x, center y, width,
height, and albumentations: left, top, right, bottom, both as shares of the image."""

SHARES: tuple[Format, ...] = ("yolo", "albumentations")

ROUNDING = 1.0
"""Pixels by which annotators' rounding may move a box over the edge. Such boxes are clipped without a warning."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with one box."""

    index: int
    reason: str


def as_boxes(values: Any) -> Boxes:
    """Return boxes from a row's lists, which may be empty."""
    return np.array(values, dtype=np.float64).reshape(-1, 4)


def parse_boxes(values: Any) -> Boxes:
    """Return the numbers of n boxes in any format. A box that is not four numbers becomes NaN."""
    boxes = np.full((len(values), 4), np.nan)
    for row, value in zip(boxes, values, strict=True):
        numbers = [np.nan if number is None else float(number) for number in value]
        if len(numbers) == 4:
            row[:] = numbers
    return boxes


def to_corners(boxes: Boxes, written: Format, size: Size) -> Boxes:
    """Return left, top, right, bottom in pixels of an image of `size`."""
    scale = np.array([*size, *size]) if written in SHARES else np.ones(4)
    first, second = np.split(boxes * scale, 2, axis=-1)
    if written == "coco":
        return np.concatenate([first, first + second], axis=-1)
    if written == "yolo":
        return np.concatenate([first - second / 2, first + second / 2], axis=-1)
    return np.concatenate([first, second], axis=-1)


def to_centers(boxes: Boxes, size: Size) -> Boxes:
    """Return center and size as shares of the image, which detectors are trained on."""
    first, second = np.split(boxes / np.array([*size, *size]), 2, axis=-1)
    return np.concatenate([(first + second) / 2, second - first], axis=-1)


def from_centers(boxes: Boxes, size: Size) -> Boxes:
    """Return left, top, right, bottom in pixels: the inverse of `to_centers`."""
    return to_corners(boxes, "yolo", size)


def to_sizes(boxes: Boxes) -> Boxes:
    """Return x, y, width, height in pixels, which COCO's tools take."""
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=-1)


def box_areas(boxes: Boxes) -> NDArray[np.float64]:
    """Return the area of each box in square pixels."""
    return np.asarray(np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1))


def find_faults(given: Boxes, written: Format, size: Size) -> list[Fault]:
    """Return what is wrong with each box that is not valid."""
    boxes = to_corners(given, written, size)
    reasons = zip(given, boxes, strict=True)
    found = [Fault(i, _reason(numbers, box, written, size)) for i, (numbers, box) in enumerate(reasons)]
    return [fault for fault in found if fault.reason]


def clip_boxes(boxes: Boxes, size: Size) -> Boxes:
    """Return the part of each box that lies in the image."""
    return np.clip(boxes, 0.0, np.array([*size, *size], dtype=float))


def visible_shares(boxes: Boxes, clipped: Boxes) -> NDArray[np.float64]:
    """Return the share of each box that is left after clipping."""
    return np.maximum(box_areas(clipped), 0.0) / np.maximum(box_areas(boxes), 1e-9)


def are_valid(boxes: Boxes) -> NDArray[np.bool_]:
    """Return which boxes are finite and have an area."""
    return np.asarray(np.isfinite(boxes).all(-1) & (boxes[:, 2:] > boxes[:, :2]).all(-1))


def _reason(numbers: NDArray[Any], box: NDArray[Any], written: Format, size: Size) -> str:
    if not np.isfinite(numbers).all():
        return "is not four finite numbers"
    if written in SHARES and np.abs(numbers).max() > 2:
        return f"is in pixels, but [task].boxes = {written!r} means shares of the image; is it 'coco' or 'voc'?"
    if written not in SHARES and _looks_like_shares(numbers):
        return f"looks like shares of the image, but [task].boxes = {written!r} means pixels; is it 'yolo'?"
    if not (box[2:] > box[:2]).all():
        return "has no width or no height"
    if (box[:2] < -ROUNDING).any() or (box[2:] > np.array(size) + ROUNDING).any():
        return f"reaches beyond its image of {size[0]}x{size[1]} pixels"
    return ""


def _looks_like_shares(numbers: Iterable[float]) -> bool:
    numbers = list(numbers)
    return all(0 <= number <= 1 for number in numbers) and any(number % 1 for number in numbers)
