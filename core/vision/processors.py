"""Image processors: the model's own, or the usual one of its architecture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.errors import DataError
from taskrecipe.system.library_output import quiet_libraries

if TYPE_CHECKING:
    from taskrecipe.model import ModelSource

Fit = Literal["model", "pad", "stretch"]
"""How an image becomes square: as the model's image processor does it, scaled with its shape kept and padded, or
stretched."""

THINNEST = 4
"""Smallest number of pixels that scaling may leave of an image's shorter side."""


def load_image_processor(source: ModelSource, **options: Any) -> Any:
    """Load the image processor that comes with the model, or the default one of the model's type."""
    if source.processor is not None or source.name is not None:
        return source.image_processor(**options)
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    with quiet_libraries("transformers"):  # it warns of every processor that needs torchvision
        usual: Any = IMAGE_PROCESSOR_MAPPING.get(type(source.config()), {})
    if "pil" in usual:
        return usual["pil"](**options)
    return source.image_processor(**options)  # it raises an error that names what is missing


def load_sized_processor(source: ModelSource) -> Any:
    """Load the model's image processor, set to the image size of the spec if the spec decides it."""
    usual, side = load_image_processor(source), getattr(source.config(), "image_size", None)
    decided = source.name is None or "image_size" in source.config_values
    if not (decided and isinstance(side, int)):
        return usual
    square = {"height": side, "width": side}
    size = {"shortest_edge": side} if "shortest_edge" in usual.size else square
    crop = {"crop_size": square} if getattr(usual, "do_center_crop", False) else {}
    return load_image_processor(source, size=size, **crop)


def load_square_processor(source: ModelSource, side: int, fit: Fit) -> Any:
    """Load the model's image processor, set to squares of `side` pixels. Its `do_pad` says whether it pads."""
    square = {"height": side, "width": side}
    usual = load_image_processor(source)
    exact = {"size_divisor": 0} if hasattr(usual, "size_divisor") else {}  # it rounds sizes up, beyond the square
    if bool(usual.size.get("height")) if fit == "model" else fit == "stretch":
        return load_image_processor(source, size=square, do_pad=False, **exact)
    return load_image_processor(
        source, size={"max_height": side, "max_width": side}, do_pad=True, pad_size=square, **exact
    )


def require_thickness(sizes: Iterable[tuple[int, int]], side: int, split: str) -> None:
    """Refuse images so long that scaling them to `side`, with their shape kept, leaves only a thin line."""
    for row, (width, height) in enumerate(sizes):
        if min(width, height) * side < THINNEST * max(width, height):
            raise DataError(
                f"the image has {width}x{height} pixels: scaled to {side} with its shape kept, "
                f'less than {THINNEST} pixels of a side are left; [task].fit = "stretch" takes it as it is',
                split=split,
                row=row,
                column="image",
            )
