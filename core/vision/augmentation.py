"""Random changes of training images, together with their boxes, masks and class maps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from taskrecipe.spec.table import Share, Table
from taskrecipe.vision.boxes import Boxes, Size, clip_boxes, visible_shares

if TYPE_CHECKING:
    from PIL.Image import Image

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

STILL_THERE = 0.25
"""Share of an object's mask (or of its box, without masks) that must stay in the image for the object to be kept."""

SMALLEST_CROP = 0.5
"""Smallest side of a random crop, as a share of the image's side."""


@dataclass(frozen=True)
class Scene:
    """An image with its boxes, masks and class map, which are changed together."""

    image: Image
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    boxes: Boxes = field(default_factory=lambda: np.zeros((0, 4)))
    masks: NDArray[np.bool_] | None = None
    """(objects, height, width)"""
    class_map: NDArray[Any] | None = None
    """(height, width); what lies outside the image becomes `outside`."""
    outside: int = 0

    def mirror(self) -> Scene:
        """Return the scene with left and right exchanged."""
        from PIL.Image import Transpose

        left, top, right, bottom = self.boxes.T
        return replace(
            self,
            image=self.image.transpose(Transpose.FLIP_LEFT_RIGHT),
            boxes=np.stack([self.image.width - right, top, self.image.width - left, bottom], axis=-1),
            masks=None if self.masks is None else self.masks[..., ::-1],
            class_map=None if self.class_map is None else self.class_map[..., ::-1],
        )

    def take_window(self, left: int, top: int, size: Size) -> Scene:
        """Return the part in a window. Where the window reaches beyond the image, it is gray and has no objects."""
        moved = self.boxes - np.array([left, top, left, top])
        boxes = clip_boxes(moved, size)
        masks = None if self.masks is None else _window(self.masks, left, top, size, False)
        left_over = visible_shares(moved, boxes) if masks is None else _sums(masks) / np.maximum(_sums(self.masks), 1)
        kept = left_over >= STILL_THERE
        return replace(
            self,
            image=_pixels(self.image, left, top, size),
            labels=self.labels[kept],
            boxes=boxes[kept],
            masks=None if masks is None else masks[kept],
            class_map=None if self.class_map is None else _window(self.class_map, left, top, size, self.outside),
        )


class Augment(Table):
    """`[task.augment]`: how training images are varied. Evaluation never varies them."""

    flip: Probability = Field(default=0.5, description="Probability of exchanging left and right.")
    scale: Share = Field(
        default=0.0,
        description="How far objects may shrink, as a share of their size, or grow likewise; 0.25 is usual.",
    )
    crop: Probability = Field(
        default=0.0, description="Probability of keeping a random part only, each side at least half the image's."
    )
    color: Share = Field(default=0.0, description="How far brightness, contrast and saturation may change.")

    def apply(self, scene: Scene, random: np.random.Generator) -> Scene:
        """Return the scene with random changes, all drawn from `random`."""
        if random.random() < self.flip:
            scene = scene.mirror()
        if self.scale:
            limit = -np.log1p(-self.scale)
            scene = _random_window(scene, np.repeat(np.exp(random.uniform(-limit, limit)), 2), random)
        if random.random() < self.crop:
            scene = _random_window(scene, random.uniform(SMALLEST_CROP, 1.0, 2), random)
        if self.color:
            scene = replace(scene, image=_recolored(scene.image, random, self.color))
        return scene


def _random_window(scene: Scene, sides: NDArray[np.float64], random: np.random.Generator) -> Scene:
    """Take a window with these sides, as shares of the image's, at a random place: inside the image, or around it."""
    whole = np.array(scene.image.size)
    size = np.maximum(np.round(whole * sides), 1).astype(int)
    spare = whole - size
    left, top = (int(edge) for edge in np.round(random.random(2) * spare))
    return scene.take_window(left, top, (int(size[0]), int(size[1])))


def _recolored(image: Image, random: np.random.Generator, strength: float) -> Image:
    from PIL import ImageEnhance

    for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = kind(image).enhance(random.uniform(1 - strength, 1 + strength))
    return image


def _pixels(image: Image, left: int, top: int, size: Size) -> Image:
    from PIL.Image import new

    canvas = new("RGB", size, (127, 127, 127))
    canvas.paste(image, (-left, -top))
    return canvas


def _sums(masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64) if masks is None else masks.sum((-2, -1))


def _window(maps: NDArray[Any], left: int, top: int, size: Size, fill: Any) -> NDArray[Any]:
    """Return the window of maps (…, height, width), with `fill` where it reaches beyond them."""
    height, width = maps.shape[-2:]
    result = np.full((*maps.shape[:-2], size[1], size[0]), fill, dtype=maps.dtype)
    x, y = max(left, 0), max(top, 0)
    part = maps[..., y : min(top + size[1], height), x : min(left + size[0], width)]
    result[..., y - top : y - top + part.shape[-2], x - left : x - left + part.shape[-1]] = part
    return result
