"""Reads and checks the column `objects` of a data set: what is where in each image."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from taskrecipe.data.image_facts import inspect_images
from taskrecipe.data.images import Orientation
from taskrecipe.errors import DataError
from taskrecipe.recipe import Row
from taskrecipe.vision import boxes as box

if TYPE_CHECKING:
    from datasets import Dataset

CATEGORY_KEYS = ("category", "category_id", "label")
"""Names that the class of an object may have in the data; the first one found counts."""

NO_SIZE = (0, 0)


@dataclass(frozen=True)
class Objects:
    """What is in one upright image."""

    width: int
    height: int
    boxes: box.Boxes
    labels: NDArray[np.int64]
    areas: NDArray[np.float64]
    crowds: NDArray[np.bool_]


def learn_categories(rows: Dataset) -> list[str]:
    """Return the names of the classes: those the data declares, or those found in the training rows, sorted."""
    names = declared_names(rows)
    if names is None:
        categories = {str(category) for objects in rows["objects"] for category in _categories(objects)}
        names = sorted(categories, key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name))
    if not names:
        raise DataError("no image has an object in it: there is nothing to learn", split="train", column="objects")
    return names


def check_categories(rows: Dataset, split: str, names: list[str]) -> None:
    """Refuse rows that declare a class which is not in `names`. Rows without objects pass: they have no targets."""
    if "objects" not in rows.column_names:
        return
    declared = declared_names(rows)
    unknown = [name for name in declared or [] if name not in names]
    if unknown:
        message = f"the classes are {declared}, but those of 'train' are {names}"
        raise DataError(message, split=split, column="objects")


def declared_names(rows: Dataset) -> list[str] | None:
    """Return the class names that the column `objects` declares; None if it declares none."""
    feature = rows.features["objects"]
    fields = getattr(feature, "feature", feature)
    for key in CATEGORY_KEYS:
        if key in fields:
            category = getattr(fields[key], "feature", fields[key])
            return list(category.names) if hasattr(category, "names") else None
    raise DataError(f"has {', '.join(fields)}, but none of {', '.join(CATEGORY_KEYS)}", column="objects")


def order_categories(names: list[str], config: Any) -> list[str]:
    """Return the classes in the order of their numbers: the model's own if it has them all, or else the data's."""
    known = list(config.id2label.values())
    return known if set(names) <= set(known) else names


@dataclass
class ObjectReader:
    """Reads objects by their boxes and numbers their classes by `names`. Invalid objects are refused or repaired."""

    names: list[str]
    written: box.Format = "coco"
    invalid: Literal["error", "repair"] = "error"
    repaired: Counter[str] = field(default_factory=Counter)
    """How often each kind of repair was made."""

    option: ClassVar[str] = "invalid_boxes"
    """The option of `[task]` that allows repairs."""

    def features(self, rows: Dataset) -> Any:
        """Return the columns that `read` makes of these rows."""
        from datasets import Features, Value

        size = {"width": Value("int64"), "height": Value("int64")}
        return Features({**size, **(self.object_features() if "objects" in rows.column_names else {})})

    def object_features(self) -> dict[str, Any]:
        """Return the columns that hold objects."""
        from datasets import List, Value

        values = {"labels": Value("int64"), "areas": Value("float64"), "crowds": Value("bool")}
        return {"boxes": List(List(Value("float64"))), **{name: List(value) for name, value in values.items()}}

    def read(self, rows: Dataset, split: str) -> dict[str, list[Any]]:
        """Return the size of each row's image and its objects, as columns. Warn of what was repaired.

        Rows without objects get only the size.
        """
        orientations = inspect_images(rows, split)
        if "objects" not in rows.column_names:
            sizes = [orientation.size for orientation in orientations]
            return {"width": [width for width, _ in sizes], "height": [height for _, height in sizes]}
        columns: dict[str, list[Any]] = {name: [] for name in self.features(rows)}
        for objects in self._read_rows(rows, split, orientations):
            for name, value in vars(objects).items():
                columns[name].append(value)
        for reason, count in self.repaired.items():
            warnings.warn(f"split {split!r}: {count} {reason}", stacklevel=2)
        self.repaired.clear()
        return columns

    def read_objects(self, row: Row, orientation: Orientation, declared: list[str] | None) -> Objects:
        """Return what is in one image, after it was turned by `orientation`."""
        objects = as_lists(row["objects"])
        given = box.parse_boxes(objects.get("bbox", []))
        frame, turned = self.find_frame(row, orientation)
        kept = self._find_readable(given, frame)
        boxes = box.clip_boxes(box.to_corners(given, self.written, frame), frame)
        kept &= box.are_valid(boxes)
        if turned:
            boxes = box.to_corners(orientation.turn_boxes(box.to_sizes(boxes)), "coco", orientation.size)
        labels, crowds = self.read_classes(objects, declared, (len(boxes), "boxes"))
        areas = choose_areas(objects, box.box_areas(boxes))
        return Objects(*orientation.size, boxes[kept], labels[kept], areas[kept], crowds[kept])

    def read_classes(
        self, objects: Mapping[str, list[Any]], declared: list[str] | None, expected: tuple[int, str]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the class of each object, and whether it is a crowd. `expected` is the number of what, by its name."""
        labels = [self._label(category, declared) for category in _categories(objects)]
        if len(labels) != expected[0]:
            raise DataError(f"there are {expected[0]} {expected[1]}, but {len(labels)} categories")
        crowds = [bool(crowd) for crowd in objects.get("iscrowd") or [False] * len(labels)]
        return np.array(labels, dtype=np.int64), np.array(crowds, dtype=bool)

    def find_frame(self, row: Row, orientation: Orientation) -> tuple[box.Size, bool]:
        """Return the size of the image that objects were drawn on, and whether they must be turned with it.

        The size in the annotations shows whether that is the stored or the upright image; without a size, or if both
        have the same, it is the stored one.
        """
        declared = (row.get("width") or 0, row.get("height") or 0)
        stored = (orientation.width, orientation.height)
        if declared == orientation.size != stored:
            return orientation.size, False
        if declared not in (NO_SIZE, stored):
            self.report_fault(
                f"the image has {stored[0]}x{stored[1]} pixels, but its annotations are for "
                f"{declared[0]}x{declared[1]}",
                "images have another size than in their annotations, which was ignored",
            )
        return stored, orientation.is_turned

    def report_fault(self, message: str, repair: str) -> None:
        """Raise an error, or count the repair if repairs are allowed."""
        if self.invalid == "error":
            raise DataError(f'{message}; to repair it, set [task].{self.option} = "repair"')
        self.repaired[repair] += 1

    def _read_rows(self, rows: Dataset, split: str, orientations: Sequence[Orientation]) -> Iterator[Objects]:
        declared, annotations = declared_names(rows), rows.remove_columns("image")
        for number, (row, orientation) in enumerate(zip(annotations, orientations, strict=True)):
            try:
                yield self.read_objects(row, orientation, declared)
            except DataError as error:
                raise DataError(str(error), split=split, row=number, column="objects") from None

    def _find_readable(self, given: box.Boxes, frame: box.Size) -> NDArray[np.bool_]:
        """Return which boxes are numbers, after reporting what is wrong with each."""
        for fault in box.find_faults(given, self.written, frame):
            numbers = ", ".join(f"{number:g}" for number in given[fault.index])
            self.report_fault(
                f"box {fault.index} [{numbers}] {fault.reason}", "boxes were invalid, and were cut or left out"
            )
        return np.asarray(np.isfinite(given).all(-1))

    def _label(self, category: Any, declared: list[str] | None) -> int:
        name = str(category) if declared is None else dict(enumerate(declared)).get(category)
        if name not in self.names:
            raise DataError(f"the category {category!r} is unknown; there are {', '.join(self.names)}")
        return self.names.index(name)


def as_lists(objects: Any) -> Mapping[str, list[Any]]:
    """Return a list of objects as one list for each of their fields."""
    if objects is None:
        return {}
    if isinstance(objects, Mapping):
        return {name: values or [] for name, values in objects.items()}
    return {name: [each[name] for each in objects] for name in (objects[0] if objects else {})}


def choose_areas(objects: Mapping[str, list[Any]], own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the areas in the annotations, which COCO measures by outlines; where there are none, those in `own`."""
    given = objects.get("area")
    if not given:
        return own
    return np.array([area if area else other for area, other in zip(given, own, strict=True)], dtype=np.float64)


def _categories(objects: Any) -> list[Any]:
    lists = as_lists(objects)
    return next((lists[key] for key in CATEGORY_KEYS if key in lists), [])
