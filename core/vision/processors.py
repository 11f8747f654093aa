"""Image processors: the model's own, or the usual one of its architecture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.core.errors import DataError
from taskrecipe.core.quiet import quiet

if TYPE_CHECKING:
    from taskrecipe.core.model import ModelSource

Fit = Literal["model", "pad", "stretch"]
"""How a picture gets square: as the model's image processor does it, scaled in its shape and padded, or stretched."""

THINNEST = 4
"""Fewest pixels that scaling may leave of a picture's shorter side."""


def image_processor(source: ModelSource, **options: Any) -> Any:
    """The image processor that comes with the model; one that is built from its type gets the type's usual one."""
    if source.processor is not None or source.name is not None:
        return source.image_processor(**options)
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    with quiet("transformers"):  # it tells of every processor that would need torchvision
        usual: Any = IMAGE_PROCESSOR_MAPPING.get(type(source.config()), {})
    if "pil" in usual:
        return usual["pil"](**options)
    return source.image_processor(**options)  # which says what is missing


def sized_processor(source: ModelSource) -> Any:
    """The model's image processor; where the spec decides the size of pictures, by a type or a value, set to that."""
    usual, side = image_processor(source), getattr(source.config(), "image_size", None)
    decided = source.name is None or "image_size" in source.config_values
    if not (decided and isinstance(side, int)):
        return usual
    square = {"height": side, "width": side}
    size = {"shortest_edge": side} if "shortest_edge" in usual.size else square
    crop = {"crop_size": square} if getattr(usual, "do_center_crop", False) else {}
    return image_processor(source, size=size, **crop)


def square_processor(source: ModelSource, side: int, fit: Fit) -> Any:
    """The image processor that comes with the model, set to squares of `side` pixels; `do_pad` tells which it does."""
    square = {"height": side, "width": side}
    usual = image_processor(source)
    exact = {"size_divisor": 0} if hasattr(usual, "size_divisor") else {}  # which rounds sizes up, beyond the square
    if bool(usual.size.get("height")) if fit == "model" else fit == "stretch":
        return image_processor(source, size=square, do_pad=False, **exact)
    return image_processor(source, size={"max_height": side, "max_width": side}, do_pad=True, pad_size=square, **exact)


def require_thickness(sizes: Iterable[tuple[int, int]], side: int, split: str) -> None:
    """Refuse pictures so long that scaling to `side`, with their shape kept, leaves next to nothing of them."""
    for row, (width, height) in enumerate(sizes):
        if min(width, height) * side < THINNEST * max(width, height):
            raise DataError(
                f"the picture has {width}x{height} pixels: scaled to {side} in its shape, "
                f'less than {THINNEST} pixels of a side are left; [task].fit = "stretch" takes it as it is',
                split=split,
                row=row,
                column="image",
            )
