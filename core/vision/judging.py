"""Whether the objects that were found in an image are those that are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_SCORE = 0.5
"""Predictions with a lower score don't count as found."""

LEAST_OVERLAP = 0.5
"""The least overlap (intersection over union) of a prediction and the object it has found."""


def are_same_objects(found: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Return whether each object was found once, by a prediction of its class, and nothing else was.

    Both have `shapes` (boxes of x, y, width, height, or masks in run lengths) and `labels`; what was found has
    `scores` too, the highest first. What is there may be marked in `crowds`: that need not be found, and may be.
    """
    sure = np.asarray(found["scores"]) >= LEAST_SCORE
    labels, right = np.asarray(found["labels"])[sure], np.asarray(there["labels"], dtype=np.int64)
    crowds = np.asarray(there["crowds"], dtype=bool)
    shapes = [shape for shape, kept in zip(found["shapes"], sure, strict=True) if kept]
    overlaps = _measure_overlaps(shapes, list(there["shapes"]), crowds)
    fits = (overlaps >= LEAST_OVERLAP) & (labels[:, None] == right[None])
    missing = ~crowds
    for row in fits:
        candidates = np.flatnonzero(row & missing)
        if len(candidates):
            missing[candidates[0]] = False
        elif not (row & crowds).any():
            return False
    return not missing.any()


def _measure_overlaps(found: list[Any], there: list[Any], crowds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the overlap of each prediction with each object."""
    from faster_coco_eval.core import mask

    if not found or not there:
        return np.zeros((len(found), len(there)))
    is_mask = isinstance(found[0], dict)
    given = [found, there] if is_mask else [np.asarray(shapes, dtype=np.float64) for shapes in (found, there)]
    overlaps: NDArray[np.float64] = np.asarray(mask.iou(given[0], given[1], crowds.astype(int).tolist()))
    return overlaps
