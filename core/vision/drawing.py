"""Drawing what was found in an image: boxes with their names, and masks that the image shines through."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taskrecipe.description import Shape

if TYPE_CHECKING:
    from PIL.Image import Image

_OPACITY = 0.5
_GOLDEN = 0.61803398875
"""Steps of this share of the color circle never come close to an earlier color."""


def class_color(number: int) -> tuple[int, int, int]:
    """Return the color of a class: always the same, and unlike its neighbors'."""
    red, green, blue = colorsys.hsv_to_rgb(number * _GOLDEN % 1.0, 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_shapes(image: Image, shapes: Sequence[Shape], names: Sequence[str] = ()) -> Image:
    """Return the image with shapes drawn on it, the first on top. A shape has the color of its name in `names`.

    A label is drawn as it is; its color is that of the longest name that it starts with.
    """
    from PIL import Image, ImageDraw

    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    colors = [class_color(_find_name(shape.label, names, number)) for number, shape in enumerate(shapes)]
    for shape, color in reversed([*zip(shapes, colors, strict=True)]):
        if shape.mask is not None:
            pixels = _blend(pixels, np.asarray(shape.mask, dtype=bool), color)
    drawn = Image.fromarray(pixels.round().astype(np.uint8))
    pen = ImageDraw.Draw(drawn)
    for shape, color in reversed([*zip(shapes, colors, strict=True)]):
        if shape.box is not None:
            pen.rectangle(_inside(shape.box, drawn.size), outline=color, width=max(1, round(min(drawn.size) / 200)))
            pen.text((shape.box[0] + 2, shape.box[1] + 1), shape.label, fill=color)
    return drawn


def color_map(classes: NDArray[np.uint8]) -> Image:
    """Return a map of class numbers as an image with a palette: its pixels are the numbers, shown in colors."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(classes, dtype=np.uint8))
    image.putpalette([channel for number in range(256) for channel in class_color(number)])
    return image


def _find_name(label: str, names: Sequence[str], otherwise: int) -> int:
    found = [number for number, name in enumerate(names) if label.startswith(name)]
    return max(found, key=lambda number: len(names[number]), default=otherwise)


def _blend(pixels: NDArray[np.float32], mask: NDArray[np.bool_], color: tuple[int, int, int]) -> NDArray[np.float32]:
    mixed = pixels.copy()
    mixed[mask] = (1 - _OPACITY) * mixed[mask] + _OPACITY * np.asarray(color, dtype=np.float32)
    return mixed


def _inside(box: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the box within the image, with its corners in order: Pillow refuses any other."""
    left, top, right, bottom = box
    left, right = sorted((min(max(left, 0), size[0] - 1), min(max(right, 0), size[0] - 1)))
    top, bottom = sorted((min(max(top, 0), size[1] - 1), min(max(bottom, 0), size[1] - 1)))
    return left, top, right, bottom
