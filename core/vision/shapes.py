"""Sample pictures drawn on the spot: coloured shapes on textured ground, with boxes, masks and a class map."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from datasets import Dataset

NAMES = ("circle", "square", "triangle")
"""The classes, in the order of their numbers."""

COLOURS = ((205, 60, 55), (60, 175, 75), (70, 95, 215))
"""What each class's colour is scattered around."""

_CROWDED = 0.1
"""Share of a shape that another may hide; beyond it, the place is taken."""

_ATTEMPTS = 10


@dataclass(frozen=True)
class Picture:
    """A drawn picture and everything that is known of it."""

    pixels: NDArray[np.uint8]
    """(height, width, 3)"""
    classes: NDArray[np.int64]
    """(shapes,)"""
    masks: NDArray[np.bool_]
    """(shapes, height, width), what is visible of each shape"""

    @property
    def boxes(self) -> NDArray[np.float64]:
        """The tight box of each shape, (shapes, 4): x, y, width, height in pixels."""
        boxes = [_box(mask) for mask in self.masks]
        return np.array(boxes, dtype=np.float64).reshape(-1, 4)

    @property
    def class_map(self) -> NDArray[np.uint8]:
        """The class of every pixel plus one, (height, width); 0 is the ground."""
        numbers = (self.classes + 1)[:, None, None] * self.masks
        return np.asarray(numbers.max(axis=0, initial=0), dtype=np.uint8)

    def png(self) -> bytes:
        """The picture as a file's content."""
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self.pixels).save(buffer, format="PNG")
        return buffer.getvalue()


def draw(random: np.random.Generator, size: int, fewest: int = 0, most: int = 3) -> Picture:
    """Draw a square picture with `fewest` to `most` shapes that hardly hide one another."""
    pixels = _ground(random, size)
    masks: list[NDArray[np.bool_]] = []
    classes: list[int] = []
    for _ in range(int(random.integers(fewest, most + 1))):
        kind = int(random.integers(len(NAMES)))
        mask = _place(random, kind, size, masks)
        if mask is None:
            continue
        colour = np.clip(np.array(COLOURS[kind]) + random.normal(0, 18, 3), 0, 255)
        pixels[mask] = colour + random.normal(0, 8, (int(mask.sum()), 3))
        masks = [other & ~mask for other in masks] + [mask]
        classes.append(kind)
    stacked = np.array(masks, dtype=bool).reshape(-1, size, size)
    return Picture(np.clip(pixels, 0, 255).astype(np.uint8), np.array(classes, dtype=np.int64), stacked)


def draw_many(count: int, size: int, seed: Sequence[int]) -> list[Picture]:
    """Draw as many pictures, always the same for one seed."""
    random = np.random.default_rng(seed)
    return [draw(random, size) for _ in range(count)]


def object_rows(pictures: Sequence[Picture]) -> Dataset:
    """Pictures as rows: `image`, its size, and `objects` with boxes and masks as COCO writes them."""
    from datasets import ClassLabel, Dataset, Features, Image, List, Value

    fields = {"bbox": List(Value("float32"), length=4), "category": ClassLabel(names=list(NAMES))}
    numbers = {"image_id": Value("int64"), "width": Value("int64"), "height": Value("int64")}
    runs = {"size": List(Value("int64"), length=2), "counts": Value("string")}
    objects = {**fields, "area": Value("float32"), "iscrowd": Value("bool"), "segmentation": runs}
    features = Features(
        {"image": Image(), **numbers, "objects": {name: List(value) for name, value in objects.items()}}
    )
    return Dataset.from_list([_row(number, picture) for number, picture in enumerate(pictures)], features=features)


def sample_splits(sizes: Mapping[str, int], side: int, seed: int) -> dict[str, Dataset]:
    """Splits of so many rows, each with pictures of its own."""
    return {
        split: object_rows(draw_many(count, side, seed=(seed, number)))
        for number, (split, count) in enumerate(sizes.items())
    }


def _row(number: int, picture: Picture) -> dict[str, Any]:
    from taskrecipe.core.vision.masks import packed

    height, width = picture.pixels.shape[:2]
    objects = {
        "bbox": picture.boxes.tolist(),
        "category": picture.classes.tolist(),
        "area": picture.masks.sum((1, 2)).tolist(),
        "iscrowd": [False] * len(picture.classes),
        "segmentation": packed(picture.masks),
    }
    image = {"bytes": picture.png(), "path": None}
    return {"image": image, "image_id": number, "width": width, "height": height, "objects": objects}


def _ground(random: np.random.Generator, size: int) -> NDArray[Any]:
    """Smooth brightness, stripes and grain, all of them nearly grey."""
    y, x = np.mgrid[0:size, 0:size] / size
    angle, frequency = random.uniform(0, np.pi), random.uniform(3, 9)
    stripes = np.sin(2 * np.pi * frequency * (x * np.cos(angle) + y * np.sin(angle)))
    slope = random.uniform(-1, 1) * (x - 0.5) + random.uniform(-1, 1) * (y - 0.5)
    grey = random.uniform(95, 160) + 8 * stripes + 50 * slope
    tint = random.normal(0, 6, 3)
    return np.asarray(grey[..., None] + tint + random.normal(0, 6, (size, size, 3)))


def _place(
    random: np.random.Generator, kind: int, size: int, taken: list[NDArray[np.bool_]]
) -> NDArray[np.bool_] | None:
    """Find a shape a place; None where the picture is too full."""
    for _ in range(_ATTEMPTS):
        radius = random.uniform(0.12, 0.22) * size
        centre = random.uniform(radius, size - radius, 2)
        mask = _shape(kind, centre, radius, size)
        if all((mask & other).sum() <= _CROWDED * min(mask.sum(), other.sum()) for other in taken):
            return mask
    return None


def _shape(kind: int, centre: NDArray[Any], radius: float, size: int) -> NDArray[np.bool_]:
    y, x = np.mgrid[0:size, 0:size] + 0.5
    dx, dy = (x - centre[0]) / radius, (y - centre[1]) / radius
    if NAMES[kind] == "circle":
        return np.asarray(dx**2 + dy**2 <= 1)
    if NAMES[kind] == "square":
        return np.asarray(np.maximum(abs(dx), abs(dy)) <= 0.9)
    return np.asarray((dy <= 0.9) & (2 * abs(dx) <= dy + 1))


def _box(mask: NDArray[np.bool_]) -> tuple[float, float, float, float]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = columns[0], rows[0]
    return float(x), float(y), float(columns[-1] + 1 - x), float(rows[-1] + 1 - y)
