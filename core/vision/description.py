"""Turning a model's pixels back into an image that can be looked at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.description import DescribedImage, Shape

if TYPE_CHECKING:
    from PIL.Image import Image


def describe_pixels(
    pixels: Any, processor: Any, shapes: list[Shape] | None = None, facts: dict[str, str] | None = None
) -> DescribedImage:
    """Describe an image that the processor has normalized, with what is drawn on it."""
    return DescribedImage(restore_pixels(pixels, processor), shapes or [], facts or {})


def describe_objects(pixels: Any, processor: Any, shapes: list[Shape]) -> DescribedImage:
    """Describe an image with objects, and count them by class."""
    counts = Counter(shape.label for shape in shapes)
    shown = ", ".join(f"{count} {label}" for label, count in counts.most_common()) or "none"
    return describe_pixels(pixels, processor, shapes, {"objects": shown})


def restore_pixels(pixels: Any, processor: Any) -> Image:
    """Undo the processor's normalization and scaling of pixels (channels, height, width)."""
    from PIL import Image

    values = np.asarray(pixels, dtype=np.float64)
    if getattr(processor, "do_normalize", False):
        mean, std = (np.asarray(part)[:, None, None] for part in (processor.image_mean, processor.image_std))
        values = values * std + mean
    if getattr(processor, "do_rescale", True):
        values = values / getattr(processor, "rescale_factor", 1 / 255)
    return Image.fromarray(np.clip(np.round(values), 0, 255).astype(np.uint8).transpose(1, 2, 0))
