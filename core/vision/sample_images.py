"""Draws sample images: colored shapes on textured ground, with boxes, masks and a class map."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from datasets import Dataset

SHAPE_NAMES = ("circle", "square", "triangle")
"""The classes, in the order of their numbers."""

COLORS = ((205, 60, 55), (60, 175, 75), (70, 95, 215))
"""The mean color of each class."""

_CROWDED = 0.1
"""Largest share of a shape that another shape may hide."""

_ATTEMPTS = 10


@dataclass(frozen=True)
class DrawnImage:
    """A drawn image with its classes and masks."""

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
        """Return the content of a PNG file."""
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self.pixels).save(buffer, format="PNG")
        return buffer.getvalue()


def draw_image(random: np.random.Generator, size: int, fewest: int = 0, most: int = 3) -> DrawnImage:
    """Draw a square image with `fewest` to `most` shapes that hardly hide one another."""
    pixels = _ground(random, size)
    masks: list[NDArray[np.bool_]] = []
    classes: list[int] = []
    for _ in range(int(random.integers(fewest, most + 1))):
        kind = int(random.integers(len(SHAPE_NAMES)))
        mask = _place(random, kind, size, masks)
        if mask is None:
            continue
        color = np.clip(np.array(COLORS[kind]) + random.normal(0, 18, 3), 0, 255)
        pixels[mask] = color + random.normal(0, 8, (int(mask.sum()), 3))
        masks = [other & ~mask for other in masks] + [mask]
        classes.append(kind)
    stacked = np.array(masks, dtype=bool).reshape(-1, size, size)
    return DrawnImage(np.clip(pixels, 0, 255).astype(np.uint8), np.array(classes, dtype=np.int64), stacked)


def draw_images(count: int, size: int, seed: Sequence[int]) -> list[DrawnImage]:
    """Draw `count` images, always the same for one seed."""
    random = np.random.default_rng(seed)
    return [draw_image(random, size) for _ in range(count)]


def make_object_rows(images: Sequence[DrawnImage]) -> Dataset:
    """Make rows of images: `image`, its size, and `objects` with boxes and masks as COCO writes them."""
    from datasets import ClassLabel, Dataset, Features, Image, List, Value

    fields = {"bbox": List(Value("float32"), length=4), "category": ClassLabel(names=list(SHAPE_NAMES))}
    numbers = {"image_id": Value("int64"), "width": Value("int64"), "height": Value("int64")}
    runs = {"size": List(Value("int64"), length=2), "counts": Value("string")}
    objects = {**fields, "area": Value("float32"), "iscrowd": Value("bool"), "segmentation": runs}
    features = Features(
        {"image": Image(), **numbers, "objects": {name: List(value) for name, value in objects.items()}}
    )
    return Dataset.from_list([_row(number, image) for number, image in enumerate(images)], features=features)


def make_sample_splits(sizes: Mapping[str, int], side: int, seed: int) -> dict[str, Dataset]:
    """Make splits with the given numbers of rows. No two splits share an image."""
    return {
        split: make_object_rows(draw_images(count, side, seed=(seed, number)))
        for number, (split, count) in enumerate(sizes.items())
    }


def _row(number: int, image: DrawnImage) -> dict[str, Any]:
    from taskrecipe.vision.masks import pack_masks

    height, width = image.pixels.shape[:2]
    objects = {
        "bbox": image.boxes.tolist(),
        "category": image.classes.tolist(),
        "area": image.masks.sum((1, 2)).tolist(),
        "iscrowd": [False] * len(image.classes),
        "segmentation": pack_masks(image.masks),
    }
    file = {"bytes": image.png(), "path": None}
    return {"image": file, "image_id": number, "width": width, "height": height, "objects": objects}


def _ground(random: np.random.Generator, size: int) -> NDArray[Any]:
    """Return a nearly gray background with a brightness slope, stripes and noise."""
    y, x = np.mgrid[0:size, 0:size] / size
    angle, frequency = random.uniform(0, np.pi), random.uniform(3, 9)
    stripes = np.sin(2 * np.pi * frequency * (x * np.cos(angle) + y * np.sin(angle)))
    slope = random.uniform(-1, 1) * (x - 0.5) + random.uniform(-1, 1) * (y - 0.5)
    gray = random.uniform(95, 160) + 8 * stripes + 50 * slope
    tint = random.normal(0, 6, 3)
    return np.asarray(gray[..., None] + tint + random.normal(0, 6, (size, size, 3)))


def _place(
    random: np.random.Generator, kind: int, size: int, taken: list[NDArray[np.bool_]]
) -> NDArray[np.bool_] | None:
    """Find a place for a shape; return None if the image is too full."""
    for _ in range(_ATTEMPTS):
        radius = random.uniform(0.12, 0.22) * size
        center = random.uniform(radius, size - radius, 2)
        mask = _shape(kind, center, radius, size)
        if all((mask & other).sum() <= _CROWDED * min(mask.sum(), other.sum()) for other in taken):
            return mask
    return None


def _shape(kind: int, center: NDArray[Any], radius: float, size: int) -> NDArray[np.bool_]:
    y, x = np.mgrid[0:size, 0:size] + 0.5
    dx, dy = (x - center[0]) / radius, (y - center[1]) / radius
    if SHAPE_NAMES[kind] == "circle":
        return np.asarray(dx**2 + dy**2 <= 1)
    if SHAPE_NAMES[kind] == "square":
        return np.asarray(np.maximum(abs(dx), abs(dy)) <= 0.9)
    return np.asarray((dy <= 0.9) & (2 * abs(dx) <= dy + 1))


def _box(mask: NDArray[np.bool_]) -> tuple[float, float, float, float]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = columns[0], rows[0]
    return float(x), float(y), float(columns[-1] + 1 - x), float(rows[-1] + 1 - y)
