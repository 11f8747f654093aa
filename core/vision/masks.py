"""Masks of objects: read from COCO's polygons and run lengths, checked, turned with their image, and packed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taskrecipe.data.coco import decode_run_lengths
from taskrecipe.data.images import Orientation
from taskrecipe.errors import DataError
from taskrecipe.recipe import Row
from taskrecipe.vision.boxes import ROUNDING, Boxes, Size
from taskrecipe.vision.objects import ObjectReader, Objects, as_lists, choose_areas

Masks = NDArray[np.bool_]
"""(n, height, width)"""

Runs = dict[str, Any]
"""A mask as COCO packs it: `size`, height and width, and `counts`, run lengths as text."""

OUTLINE_KEYS = ("segmentation", "polygons", "rle")
"""Names that outlines may have in the data. Each object has an outline under one of them."""


@dataclass(frozen=True)
class OutlinedObjects(Objects):
    """What is in one upright image, with the mask of each object and the box around it."""

    masks: list[Runs]


class OutlineReader(ObjectReader):
    """Reads objects by their outlines. Their boxes are those around the outlines, not those in the data."""

    option: ClassVar[str] = "invalid_masks"

    @override
    def object_features(self) -> dict[str, Any]:
        from datasets import List, Value

        runs = {"size": List(Value("int64"), length=2), "counts": Value("string")}
        return {**super().object_features(), "masks": List(runs)}

    @override
    def read_objects(self, row: Row, orientation: Orientation, declared: list[str] | None) -> OutlinedObjects:
        objects = as_lists(row["objects"])
        frame, turned = self.find_frame(row, orientation)
        outlines = _outlines(objects)
        labels, crowds = self.read_classes(objects, declared, (len(outlines), "outlines"))
        masks = np.zeros((len(outlines), frame[1], frame[0]), dtype=bool)
        for number, outline in enumerate(outlines):
            masks[number] = self._mask(number, outline, frame)
        kept = masks.any((1, 2))
        areas = choose_areas(objects, masks.sum((1, 2)).astype(np.float64))[kept]
        masks = orientation.turn_maps(masks)[kept] if turned else masks[kept]
        boxes, runs = boxes_around(masks), pack_masks(masks)
        return OutlinedObjects(*orientation.size, boxes, labels[kept], areas, crowds[kept], runs)

    def _mask(self, number: int, outline: Any, frame: Size) -> Masks:
        """Return the mask of one object, an empty one if it is invalid and repairs are allowed."""
        what, left_out = f"the outline of object {number}", "objects had no valid outline, and were left out"
        try:
            mask, beyond = draw_outline(outline, frame)
        except DataError as error:
            self.report_fault(f"{what} {error}", left_out)
            return np.zeros(frame[::-1], dtype=bool)
        size = f"its image of {frame[0]}x{frame[1]} pixels"
        if not mask.any():
            self.report_fault(f"{what} covers nothing of {size}", left_out)
        elif beyond:
            self.report_fault(f"{what} reaches beyond {size}", "outlines reached beyond their image, and were cut")
        return mask


def draw_outline(outline: Any, size: Size) -> tuple[Masks, bool]:
    """Return the mask (height, width) of polygons or run lengths, and whether they reach beyond an image of `size`.

    Raise `DataError` for anything else.
    """
    if not outline:
        raise DataError("is missing")
    if isinstance(outline, str):
        raise DataError(f"is text, {outline[:60]!r}, and neither polygons nor run lengths")
    if isinstance(outline, Mapping):
        return _from_runs(outline, size), False
    polygons = [_corners(polygon) for polygon in (outline if isinstance(outline[0], Sequence) else [outline])]
    beyond = any((corners < -ROUNDING).any() or (corners > np.array(size) + ROUNDING).any() for corners in polygons)
    return _from_polygons([corners.clip(0, size) for corners in polygons], size), beyond


def unpack_masks(masks: Sequence[Runs], size: Size) -> Masks:
    """Return the masks (n, height, width) that `pack_masks` packed, of an image of `size`."""
    result = np.zeros((len(masks), size[1], size[0]), dtype=bool)
    for mask, runs in zip(result, masks, strict=True):
        mask[:] = _from_runs(runs, size)
    return result


def pack_masks(masks: Masks) -> list[Runs]:
    """Return masks as run lengths, as COCO's tools take them."""
    from faster_coco_eval.core import mask as coco

    if not len(masks):
        return []
    codes = coco.encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))
    return [{"size": list(masks.shape[1:]), "counts": code["counts"].decode()} for code in codes]


def boxes_around(masks: Masks) -> Boxes:
    """Return the tight box of each mask. No mask may be empty."""
    rows, columns = np.asarray(masks.any(2)), np.asarray(masks.any(1))
    first = [axis.argmax(1) for axis in (columns, rows)]
    last = [axis.shape[1] - axis[:, ::-1].argmax(1) for axis in (columns, rows)]
    return np.stack([*first, *last], axis=-1).astype(np.float64)


def scale_masks(masks: Masks, size: Size) -> Masks:
    """Return masks at another size, of the pixels that are covered at least by half."""
    from PIL import Image

    result = np.zeros((len(masks), size[1], size[0]), dtype=bool)
    for target, mask in zip(result, masks, strict=True):
        image = Image.fromarray(mask.astype(np.uint8) * 255)
        target[:] = np.asarray(image.resize(size, Image.Resampling.BILINEAR)) >= 128
    return result


def _outlines(objects: Mapping[str, list[Any]]) -> list[Any]:
    """Return each object's outline, by the first name under which it has one; None if it has none."""
    there = [objects[key] for key in OUTLINE_KEYS if key in objects]
    if not there and any(objects.values()):
        raise DataError(f"objects have {', '.join(objects)}, but no outline: none of {', '.join(OUTLINE_KEYS)}")
    return [next((outline for outline in each if outline), None) for each in zip(*there, strict=True)]


def _from_runs(runs: Mapping[str, Any], size: Size) -> Masks:
    if not runs.get("size") or not runs.get("counts"):
        raise DataError(f"has {', '.join(runs)}, but a mask's run lengths are its size and counts")
    height, width = runs["size"]
    if (width, height) != size:
        raise DataError(f"is a mask of {width}x{height} pixels, but its image has {size[0]}x{size[1]}")
    counts = runs["counts"]
    lengths = decode_run_lengths(counts) if isinstance(counts, str) else list(counts)
    if min(lengths, default=0) < 0 or sum(lengths) != width * height:
        raise DataError(f"has run lengths for {sum(lengths)} pixels, but its image has {width * height}")
    flat = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return flat.reshape(width, height).T


def _corners(polygon: Any) -> NDArray[np.float64]:
    """Return the corners (n, 2) of a polygon, which is written as x, y, x, y …"""
    try:
        numbers = np.array(polygon, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"is neither polygons nor run lengths, but {str(polygon)[:60]!r}") from None
    if not np.isfinite(numbers).all():
        raise DataError("has corners that are not finite numbers")
    if numbers.ndim != 1 or len(numbers) < 6 or len(numbers) % 2:
        raise DataError(f"has a polygon of {numbers.size} numbers; x and y of at least three corners are needed")
    return numbers.reshape(-1, 2)


def _from_polygons(polygons: Sequence[NDArray[np.float64]], size: Size) -> Masks:
    from faster_coco_eval.core import mask as coco

    parts = coco.frPyObjects([corners.reshape(-1).tolist() for corners in polygons], size[1], size[0])
    return np.asarray(coco.decode(coco.merge(parts)), dtype=bool)
