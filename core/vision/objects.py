"""The `objects` column of a data set: what is where in each picture, read, checked and put into one form."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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


def numbering(names: list[str], config: Any) -> list[str]:
    """The classes in the order of their numbers: those of a model that knows them all, or else as the data has them."""
    known = list(config.id2label.values())
    return known if set(names) <= set(known) else names


@dataclass
class ObjectReader:
    """Reads objects by their boxes, numbering classes by `names`; what is wrong is refused or, to order, repaired."""

    names: list[str]
    written: box.Format = "coco"
    invalid: Literal["error", "repair"] = "error"
    repaired: Counter[str] = field(default_factory=Counter)

    option: ClassVar[str] = "invalid_boxes"
    """The option of `[task]` that orders repairs."""

    def features(self) -> Any:
        """The columns that `read` gives, as a data set has them."""
        from datasets import Features, List, Value

        values = {
            "boxes": List(Value("float64")),
            "labels": Value("int64"),
            "areas": Value("float64"),
            "crowds": Value("bool"),
        }
        size = {"width": Value("int64"), "height": Value("int64")}
        return Features({**size, **{name: List(value) for name, value in values.items()}})

    def read(self, rows: Dataset, split: str) -> dict[str, list[Any]]:
        """What `objects` finds, as columns for all rows; says how much was repaired."""
        declared = declared_names(rows)
        columns: dict[str, list[Any]] = {}
        for number, row in enumerate(undecoded(rows)):
            for name, value in vars(self._located(row, declared, split, number)).items():
                columns.setdefault(name, []).append(value)
        for reason, count in self.repaired.items():
            warnings.warn(f"split {split!r}: {count} {reason}", stacklevel=2)
        self.repaired.clear()
        return columns

    def _located(self, row: Row, declared: list[str] | None, split: str, number: int) -> Objects:
        column = "image"
        try:
            orientation = check_image(row["image"])
            column = "objects"
            return self.objects(row, orientation, declared)
        except DataError as error:
            raise DataError(str(error), split=split, row=number, column=column) from None

    def objects(self, row: Row, orientation: Orientation, declared: list[str] | None) -> Objects:
        """What is in one picture, which stands upright after `orientation`."""
        objects = as_lists(row["objects"])
        given = box.parse(objects.get("bbox", []))
        frame, turned = self.frame(row, orientation)
        kept = self._sound(given, frame)
        boxes = box.clip(box.to_corners(given, self.written, frame), frame)
        kept &= box.sound(boxes)
        if turned:
            boxes = box.to_corners(orientation.boxes(box.to_sizes(boxes)), "coco", orientation.size)
        labels, crowds = self.classes(objects, declared, (len(boxes), "boxes"))
        areas = given_areas(objects, box.areas(boxes))
        return Objects(*orientation.size, boxes[kept], labels[kept], areas[kept], crowds[kept])

    def classes(
        self, objects: Mapping[str, list[Any]], declared: list[str] | None, expected: tuple[int, str]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The class of each object, and whether it is a crowd; there must be as many as of what `expected` names."""
        labels = [self._label(category, declared) for category in _categories(objects)]
        if len(labels) != expected[0]:
            raise DataError(f"there are {expected[0]} {expected[1]}, but {len(labels)} categories")
        crowds = [bool(crowd) for crowd in objects.get("iscrowd") or [False] * len(labels)]
        return np.array(labels, dtype=np.int64), np.array(crowds, dtype=bool)

    def frame(self, row: Row, orientation: Orientation) -> tuple[box.Size, bool]:
        """The picture that objects were drawn on, as stored or upright, and whether they must be turned with it.

        The size that comes with the annotations tells; where it doesn't, they are for the picture as stored.
        """
        declared = (row.get("width") or 0, row.get("height") or 0)
        stored = (orientation.width, orientation.height)
        if declared == orientation.size != stored:
            return orientation.size, False
        if declared not in (NO_SIZE, stored):
            self.complain(
                f"the picture has {stored[0]}x{stored[1]} pixels, but its annotations are for "
                f"{declared[0]}x{declared[1]}",
                "pictures have another size than their annotations say, which was ignored",
            )
        return stored, orientation.turned

    def _sound(self, given: box.Boxes, frame: box.Size) -> NDArray[np.bool_]:
        """Which boxes can be kept, if only in part."""
        for fault in box.faults(given, self.written, frame):
            numbers = ", ".join(f"{number:g}" for number in given[fault.index])
            self.complain(f"box {fault.index} [{numbers}] {fault.reason}", "boxes were wrong, and cut or left out")
        return np.asarray(np.isfinite(given).all(-1))

    def complain(self, message: str, repaired: str) -> None:
        """Refuse what is wrong, or count it under the words that say what became of it."""
        if self.invalid == "error":
            raise DataError(f'{message}; [task].{self.option} = "repair" makes the best of it')
        self.repaired[repaired] += 1

    def _label(self, category: Any, declared: list[str] | None) -> int:
        name = str(category) if declared is None else dict(enumerate(declared)).get(category)
        if name not in self.names:
            raise DataError(f"the category {category!r} is unknown; there are {', '.join(self.names)}")
        return self.names.index(name)


def as_lists(objects: Any) -> Mapping[str, list[Any]]:
    """A list of objects as one list for each of their fields."""
    if objects is None:
        return {}
    if isinstance(objects, Mapping):
        return {name: values or [] for name, values in objects.items()}
    return {name: [each[name] for each in objects] for name in (objects[0] if objects else {})}


def _categories(objects: Any) -> list[Any]:
    lists = as_lists(objects)
    return next((lists[key] for key in CATEGORY_KEYS if key in lists), [])


def given_areas(objects: Mapping[str, list[Any]], own: NDArray[np.float64]) -> NDArray[np.float64]:
    """The areas that come with the objects, which COCO has of the outlines; where there are none, their `own`."""
    given = objects.get("area")
    if not given:
        return own
    return np.array([area if area else other for area, other in zip(given, own, strict=True)], dtype=np.float64)
