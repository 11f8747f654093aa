"""The `objects` column of detection data: what is where in each picture, read, checked and put into one form."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskrecipe.core.data.images import Orientation, check_image, undecoded
from taskrecipe.core.errors import DataError
from taskrecipe.core.recipe import Row, Splits
from taskrecipe.core.vision import boxes as box

if TYPE_CHECKING:
    from datasets import Dataset

CATEGORY_KEYS = ("category", "category_id", "label")
"""What the class of an object may be called; the first that is there counts."""

NO_SIZE = (0, 0)


@dataclass(frozen=True)
class Objects:
    """What is in one upright picture."""

    width: int
    height: int
    boxes: box.Boxes
    labels: NDArray[np.int64]
    areas: NDArray[np.float64]
    crowds: NDArray[np.bool_]


def object_features() -> Any:
    """The columns of `Objects` as a data set has them."""
    from datasets import Features, List, Value

    values = {
        "boxes": List(Value("float64")),
        "labels": Value("int64"),
        "areas": Value("float64"),
        "crowds": Value("bool"),
    }
    size = {"width": Value("int64"), "height": Value("int64")}
    return Features({**size, **{name: List(value) for name, value in values.items()}})


def category_names(splits: Splits) -> list[str]:
    """The names of the classes: those the data declares, or else those found in the training rows, sorted."""
    names = declared_names(splits["train"])
    for split, rows in splits.items():
        if declared_names(rows) != names:
            found = declared_names(rows)
            raise DataError(f"the classes are {found}, but those of 'train' are {names}", split=split, column="objects")
    if names is None:
        categories = {str(category) for objects in splits["train"]["objects"] for category in _categories(objects)}
        names = sorted(categories, key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name))
    if not names:
        raise DataError("no picture has an object in it: there is nothing to learn", split="train", column="objects")
    return names


def declared_names(rows: Dataset) -> list[str] | None:
    """The class names that the column itself declares, if it does."""
    feature = rows.features["objects"]
    fields = getattr(feature, "feature", feature)
    for key in CATEGORY_KEYS:
        if key in fields:
            category = getattr(fields[key], "feature", fields[key])
            return list(category.names) if hasattr(category, "names") else None
    raise DataError(f"has {', '.join(fields)}, but none of {', '.join(CATEGORY_KEYS)}", column="objects")


@dataclass
class ObjectReader:
    """Reads objects, numbering classes by `names`; boxes that are wrong are refused or, to order, repaired."""

    names: list[str]
    written: box.Format
    invalid: Literal["error", "repair"]
    repaired: Counter[str] = field(default_factory=Counter)

    def read(self, rows: Dataset, split: str) -> dict[str, list[Any]]:
        """The columns of `Objects` for all rows; says how many boxes were repaired."""
        declared = declared_names(rows)
        columns: dict[str, list[Any]] = {name: [] for name in Objects.__dataclass_fields__}
        for number, row in enumerate(undecoded(rows)):
            for name, value in vars(self._located(row, declared, split, number)).items():
                columns[name].append(value)
        for reason, count in self.repaired.items():
            warnings.warn(f"split {split!r}: {count} {reason}", stacklevel=2)
        self.repaired.clear()
        return columns

    def _located(self, row: Row, declared: list[str] | None, split: str, number: int) -> Objects:
        column = "image"
        try:
            orientation = check_image(row["image"])
            column = "objects"
            return self._objects(row, orientation, declared)
        except DataError as error:
            raise DataError(str(error), split=split, row=number, column=column) from None

    def _objects(self, row: Row, orientation: Orientation, declared: list[str] | None) -> Objects:
        objects = _as_lists(row["objects"])
        given = box.parse(objects.get("bbox", []))
        frame, turned = self._frame(row, orientation)
        kept = self._sound(given, frame)
        boxes = box.clip(box.to_corners(given, self.written, frame), frame)
        kept &= box.sound(boxes)
        if turned:
            boxes = box.to_corners(orientation.boxes(box.to_sizes(boxes)), "coco", orientation.size)
        labels = [self._label(category, declared) for category in _categories(objects)]
        if len(labels) != len(boxes):
            raise DataError(f"there are {len(boxes)} boxes, but {len(labels)} categories")
        crowds = np.array([bool(crowd) for crowd in objects.get("iscrowd") or [False] * len(boxes)], dtype=bool)
        areas = _areas(objects.get("area"), boxes)
        size = orientation.size
        return Objects(*size, boxes[kept], np.array(labels, dtype=np.int64)[kept], areas[kept], crowds[kept])

    def _frame(self, row: Row, orientation: Orientation) -> tuple[box.Size, bool]:
        """The picture that boxes were drawn on, as stored or upright, and whether they must be turned with it.

        The size that comes with the annotations tells; where it doesn't, they are for the picture as stored.
        """
        declared = (row.get("width") or 0, row.get("height") or 0)
        stored = (orientation.width, orientation.height)
        if declared == orientation.size != stored:
            return orientation.size, False
        if declared not in (NO_SIZE, stored):
            self._complain(
                f"the picture has {stored[0]}x{stored[1]} pixels, but its annotations are for "
                f"{declared[0]}x{declared[1]}",
                "pictures have another size than their annotations say, which was ignored",
            )
        return stored, orientation.turned

    def _sound(self, given: box.Boxes, frame: box.Size) -> NDArray[np.bool_]:
        """Which boxes can be kept, if only in part."""
        for fault in box.faults(given, self.written, frame):
            numbers = ", ".join(f"{number:g}" for number in given[fault.index])
            self._complain(f"box {fault.index} [{numbers}] {fault.reason}", "boxes were wrong, and cut or left out")
        return np.asarray(np.isfinite(given).all(-1))

    def _complain(self, message: str, repaired: str) -> None:
        if self.invalid == "error":
            raise DataError(f'{message}; [task].invalid_boxes = "repair" makes the best of it')
        self.repaired[repaired] += 1

    def _label(self, category: Any, declared: list[str] | None) -> int:
        name = str(category) if declared is None else dict(enumerate(declared)).get(category)
        if name not in self.names:
            raise DataError(f"the category {category!r} is unknown; there are {', '.join(self.names)}")
        return self.names.index(name)


def _as_lists(objects: Any) -> Mapping[str, list[Any]]:
    """A list of objects as one list for each of their fields."""
    if objects is None:
        return {}
    if isinstance(objects, Mapping):
        return {name: values or [] for name, values in objects.items()}
    return {name: [each[name] for each in objects] for name in (objects[0] if objects else {})}


def _categories(objects: Any) -> list[Any]:
    lists = _as_lists(objects)
    return next((lists[key] for key in CATEGORY_KEYS if key in lists), [])


def _areas(given: list[Any] | None, boxes: box.Boxes) -> NDArray[np.float64]:
    """COCO's areas are those of the outlines; where there are none, the boxes'."""
    own = box.areas(boxes)
    if not given:
        return own
    return np.array([area if area else other for area, other in zip(given, own, strict=True)], dtype=np.float64)
