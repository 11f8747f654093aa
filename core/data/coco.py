"""COCO json: one file a split, or several, and a folder of pictures.

Refused: a picture that is missing or outside its folder, two with one number, an unknown category, a box that is not
four numbers, an outline that is neither polygons nor run lengths. Annotations of pictures that are not in the file are
left out, and counted. Boxes and outlines are kept as written; whether they fit their picture is the recipe's to judge.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskrecipe.core.data.annotations import Item, Picture, as_splits, picture_path
from taskrecipe.core.data.causes import explained
from taskrecipe.core.errors import DataError

_LISTS = re.compile(rb'"(images|annotations|categories|licenses)"\s*:\s*\[')


def recognised(path: Path) -> bool:
    """Whether a file is COCO json, by what is in it."""
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(2**16)
    if not (head.lstrip().startswith(b"{") and _LISTS.search(head)):  # no other file need be read to its end
        return False
    try:
        return _is_coco(json.loads(path.read_bytes()))
    except ValueError:  # rows of a table, say, of which one has such a column
        return False


def _is_coco(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(content.get(key), list) for key in ("images", "categories"))


def load(paths: Mapping[str, list[Path]], images: Path | None) -> dict[str, Any]:
    """Read every split; a class has the same number in all of them, in the order of their ids in the files."""
    pictures: dict[str, list[Picture]] = {}
    names: dict[str, None] = {}
    for split, files in sorted(paths.items(), key=lambda item: item[0] != "train"):
        for path in files:
            with explained(f"'{path}'", split):
                file = _File(path, images or path.parent, split)
                names |= dict.fromkeys(file.categories.values())
                pictures.setdefault(split, []).extend(file.pictures())
    return as_splits({split: pictures[split] for split in paths}, list(names))


class _File:
    """One file, checked as it is read."""

    def __init__(self, path: Path, images: Path, split: str) -> None:
        self.path, self.images, self.split = path, images, split
        content = json.loads(path.read_text(encoding="utf-8"))
        if not _is_coco(content):
            raise self._error("is not COCO json: it needs lists 'images', 'categories' and 'annotations'")
        self.content: dict[str, Any] = content
        self.categories = self._categories()

    def pictures(self) -> list[Picture]:
        """The pictures in the order of the file, each with its objects."""
        rows: dict[int, int] = {}
        pictures: list[Picture] = []
        for row, entry in enumerate(self.content["images"]):
            if entry["id"] in rows:
                raise self._error(f"two pictures have the id {entry['id']}", row, "image_id")
            rows[entry["id"]] = row
            pictures.append(self._picture(row, entry))
        self._annotate(pictures, rows)
        return pictures

    def _annotate(self, pictures: list[Picture], rows: Mapping[int, int]) -> None:
        lost = 0
        for entry in self.content.get("annotations", []):
            row = rows.get(entry.get("image_id"))
            if row is None:
                lost += 1
            else:
                pictures[row].objects.append(self._item(row, entry))
        if lost:
            warnings.warn(
                f"split {self.split!r}: {lost} annotations in '{self.path}' are of no picture in it", stacklevel=2
            )

    def _categories(self) -> dict[int, str]:
        categories = {int(entry["id"]): str(entry["name"]) for entry in self.content["categories"]}
        names = list(categories.values())
        if len(names) != len(self.content["categories"]) or len(set(names)) != len(names):
            raise self._error("two categories have the same id or name")
        return dict(sorted(categories.items()))

    def _picture(self, row: int, entry: Mapping[str, Any]) -> Picture:
        try:
            path = picture_path(self.images, str(entry.get("file_name", "")))
        except DataError as error:
            raise self._error(str(error), row, "image") from None
        number = entry["id"] if isinstance(entry["id"], int) else row
        return Picture(path, number, _pixels(entry.get("width")), _pixels(entry.get("height")))

    def _item(self, row: int, entry: Mapping[str, Any]) -> Item:
        category = self.categories.get(entry["category_id"])
        if category is None:
            known = ", ".join(f"{number} ({name})" for number, name in list(self.categories.items())[:10])
            raise self._error(f"the category {entry['category_id']!r} is unknown; there are {known}", row, "objects")
        box = entry.get("bbox")
        if not (isinstance(box, list) and len(box) == 4 and all(isinstance(value, int | float) for value in box)):
            raise self._error(f"the box {box!r} is not four numbers", row, "objects")
        segmentation = entry.get("segmentation")
        try:
            polygons, rle = _outline(segmentation)
        except (KeyError, TypeError, ValueError):
            found = str(segmentation)[:60]
            raise self._error(f"the segmentation {found} is neither polygons nor run lengths", row, "objects") from None
        area = entry.get("area")
        area = box[2] * box[3] if area is None else area
        return Item(
            [float(value) for value in box], category, float(area), bool(entry.get("iscrowd", 0)), polygons, rle
        )

    def _error(self, message: str, row: int | None = None, column: str | None = None) -> DataError:
        return DataError(
            f"{message} (in '{self.path}')" if row is not None else f"'{self.path}' {message}",
            split=self.split,
            row=row,
            column=column,
        )


def _pixels(side: Any) -> int | None:
    return None if side is None else int(side)


def _outline(segmentation: Any) -> tuple[list[list[float]] | None, dict[str, list[int]] | None]:
    """Polygons or run lengths, whichever there are."""
    if not segmentation:
        return None, None
    if isinstance(segmentation, list):
        return [[float(value) for value in polygon] for polygon in segmentation], None
    counts, (height, width) = segmentation["counts"], segmentation["size"]
    runs = unpacked(counts) if isinstance(counts, str) else [int(count) for count in counts]
    return None, {"size": [int(height), int(width)], "counts": runs}


def unpacked(text: str) -> list[int]:
    """The run lengths that COCO's tools pack into text: five bits a character, and from the fourth on differences."""
    counts: list[int] = []
    value, shift = 0, 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if not bits & 0x20:
            value -= (1 << shift) if bits & 0x10 else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, shift = 0, 0
    return counts
