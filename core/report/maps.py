"""How well each pixel's class is predicted: the overlap of each class, and maps in colors."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe.report.evidence import Evidence
from taskrecipe.report.objects import unpack_mask
from taskrecipe.report.table import Table

PALETTE = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (184, 85, 143),
    (184, 121, 0), (58, 147, 207), (107, 114, 128), (140, 122, 0),
)  # fmt: skip
"""Colors of classes in maps and of outlines, the same as those of curves. They begin again after the last."""
LEFT_OUT = (235, 235, 235)
NO_CLASS = 2**31
"""Stands for pixels that don't count."""
MOST_MAPS = 2000
"""Maps that are counted for the table."""
LARGEST = 256
"""Side of a drawn map in pixels."""


def tabulate_maps(evidence: Evidence) -> Table | None:
    """Tabulate the overlap of each class over all pixels; None where maps can't be read."""
    count = len(evidence.labels)
    confusion = np.zeros((count, count), dtype=np.int64)
    for right, found in list(zip(evidence.references, evidence.predictions, strict=True))[:MOST_MAPS]:
        pair = read_map(right, evidence.labels), read_map(found, evidence.labels)
        if pair[0] is None or pair[1] is None or pair[0].shape != pair[1].shape:
            continue
        counted = (pair[0] < count) & (pair[1] < count)
        places = pair[0][counted].astype(np.int64) * count + pair[1][counted]
        confusion += np.bincount(places, minlength=count * count).reshape(count, count)
    if not confusion.sum():
        return None
    right, there, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    pairs = [
        (right, there + predicted - right),
        (right, there),
        (right, predicted),
        (there, np.full(count, confusion.sum())),
    ]
    rows = [[label, *(_share(a[k], b[k]) for a, b in pairs)] for k, label in enumerate(evidence.labels)]
    columns = ["class", "IoU", "recall", "precision", "share of pixels"]
    return Table(f"maps-{evidence.split}", "Per class", columns, rows)


def read_map(answer: Any, labels: Sequence[str]) -> NDArray[np.int64] | None:
    """Return the class of every pixel from the masks of an answer; None if it has none."""
    masks = answer.get("masks") if isinstance(answer, dict) else None
    if not masks:
        return None
    classes = np.full(next(iter(masks.values()))["size"], NO_CLASS, dtype=np.int64)
    for label, mask in masks.items():
        if label in labels:
            classes[unpack_mask(mask)] = labels.index(label)
    return classes


def draw_map(answer: Any, labels: Sequence[str]) -> str | None:
    """Return an answer's map as a small PNG file in colors, in base64; None where there is nothing to draw it with."""
    try:
        from PIL import Image
    except ImportError:
        return None
    classes = read_map(answer, labels)
    if classes is None:
        return None
    image = Image.fromarray(np.where(classes < NO_CLASS, classes % len(PALETTE), 255).astype(np.uint8), mode="P")
    colors = [*PALETTE, *[(0, 0, 0)] * (255 - len(PALETTE)), LEFT_OUT]
    image.putpalette([value for color in colors for value in color])
    image.thumbnail((LARGEST, LARGEST), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _share(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
