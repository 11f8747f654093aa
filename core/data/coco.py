"""COCO json: one or several files for each split, and a folder of images.

Refused are: an image that is missing or outside its folder, two images with one id, an unknown category, a box that is
not four numbers, and an outline that is neither polygons nor run lengths. Annotations of images that are not in the
file are left out, and counted in a warning. Boxes and outlines are kept as written; the recipe checks whether they fit
their image.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from taskrecipe.data.annotations import AnnotatedImage, AnnotatedObject, find_image, make_splits, require_images
from taskrecipe.data.read_errors import explain_read_errors
from taskrecipe.errors import DataError

_LISTS = re.compile(rb'"(images|annotations|categories|licenses)"\s*:\s*\[')


def is_coco_file(path: Path) -> bool:
    """Return whether a file is COCO json, judged by its content."""
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(2**16)
    if not (head.lstrip().startswith(b"{") and _LISTS.search(head)):  # so that other large files are not read whole
        return False
    try:
        return _is_coco(json.loads(path.read_bytes()))
    except ValueError:  # for example one row for each line, with a column of such a name
        return False


def _is_coco(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(content.get(key), list) for key in ("images", "categories"))


def load_coco(paths: Mapping[str, list[Path]], images: Path | None) -> dict[str, Any]:
    """Read every split. A class has the same number in all splits, in the order of the ids in the files."""
    found: dict[str, list[AnnotatedImage]] = {}
    names: dict[str, None] = {}
    # The training split is read first, so that its classes get the first numbers.
    for split, files in sorted(paths.items(), key=lambda item: item[0] != "train"):
        for path in files:
            with explain_read_errors(f"'{path}'", split):
                file = _File(path, images or path.parent, split)
                names |= dict.fromkeys(file.categories.values())
                found.setdefault(split, []).extend(file.read_images())
        require_images(found.get(split, []), files, split)
    return make_splits({split: found[split] for split in paths}, list(names))


def read_category_ids(paths: Iterable[Path]) -> dict[str, int]:
    """Return the ids that COCO files give to their categories, by name; nothing for files of another format."""
    found: dict[str, int] = {}
    for path in paths:
        if path.is_file() and is_coco_file(path):
            entries = json.loads(path.read_bytes())["categories"]
            found |= {str(entry["name"]): int(entry["id"]) for entry in entries}
    return found


class _File:
    """One file, checked while it is read."""

    def __init__(self, path: Path, images: Path, split: str) -> None:
        self.path, self.images, self.split = path, images, split
        content = json.loads(path.read_text(encoding="utf-8"))
        if not _is_coco(content):
            raise self._make_error("is not COCO json: it needs lists 'images', 'categories' and 'annotations'")
        self.content: dict[str, Any] = content
        self.categories = self._read_categories()

    def read_images(self) -> list[AnnotatedImage]:
        """Return the images in the order of the file, each with its objects."""
        rows: dict[int, int] = {}
        images: list[AnnotatedImage] = []
        for row, entry in enumerate(self.content["images"]):
            if entry["id"] in rows:
                raise self._make_error(f"two images have the id {entry['id']}", row, "image_id")
            rows[entry["id"]] = row
            images.append(self._read_image(row, entry))
        self._add_objects(images, rows)
        return images

    def _add_objects(self, images: list[AnnotatedImage], rows: Mapping[int, int]) -> None:
        lost = 0
        for entry in self.content.get("annotations", []):
            row = rows.get(entry.get("image_id"))
            if row is None:
                lost += 1
            else:
                images[row].objects.append(self._read_object(row, entry))
        if lost:
            message = f"split {self.split!r}: {lost} annotations in '{self.path}' belong to no image in it"
            warnings.warn(message, stacklevel=2)

    def _read_categories(self) -> dict[int, str]:
        categories = {int(entry["id"]): str(entry["name"]) for entry in self.content["categories"]}
        names = list(categories.values())
        if len(names) != len(self.content["categories"]) or len(set(names)) != len(names):
            raise self._make_error("has two categories with the same id or name")
        return dict(sorted(categories.items()))

    def _read_image(self, row: int, entry: Mapping[str, Any]) -> AnnotatedImage:
        try:
            path = find_image(self.images, str(entry.get("file_name", "")))
        except DataError as error:
            raise self._make_error(str(error), row, "image") from None
        number = entry["id"] if isinstance(entry["id"], int) else row
        return AnnotatedImage(path, number, _read_side(entry.get("width")), _read_side(entry.get("height")))

    def _read_object(self, row: int, entry: Mapping[str, Any]) -> AnnotatedObject:
        category = self.categories.get(entry["category_id"])
        if category is None:
            known = ", ".join(f"{number} ({name})" for number, name in list(self.categories.items())[:10])
            message = f"the category {entry['category_id']!r} is unknown; there are {known}"
            raise self._make_error(message, row, "objects")
        box = entry.get("bbox")
        if not (isinstance(box, list) and len(box) == 4 and all(isinstance(value, int | float) for value in box)):
            raise self._make_error(f"the box {box!r} is not four numbers", row, "objects")
        polygons, rle = self._read_outline(row, entry.get("segmentation"))
        area = float(box[2] * box[3] if entry.get("area") is None else entry["area"])
        crowd = bool(entry.get("iscrowd", 0))
        return AnnotatedObject([float(value) for value in box], category, area, crowd, polygons, rle)

    def _read_outline(
        self, row: int, segmentation: Any
    ) -> tuple[list[list[float]] | None, dict[str, list[int]] | None]:
        """Return polygons or run lengths, whichever there are."""
        try:
            if not segmentation:
                return None, None
            if isinstance(segmentation, list):
                return [[float(value) for value in polygon] for polygon in segmentation], None
            return None, _read_run_lengths(segmentation)
        except (KeyError, TypeError, ValueError):
            message = f"the segmentation {str(segmentation)[:60]} is neither polygons nor run lengths"
            raise self._make_error(message, row, "objects") from None

    def _make_error(self, message: str, row: int | None = None, column: str | None = None) -> DataError:
        text = f"'{self.path}' {message}" if row is None else f"{message} (in '{self.path}')"
        return DataError(text, split=self.split, row=row, column=column)


def _read_side(side: Any) -> int | None:
    return None if side is None else int(side)


def _read_run_lengths(segmentation: Mapping[str, Any]) -> dict[str, list[int]]:
    counts, (height, width) = segmentation["counts"], segmentation["size"]
    runs = decode_run_lengths(counts) if isinstance(counts, str) else [int(count) for count in counts]
    return {"size": [int(height), int(width)], "counts": runs}


def decode_run_lengths(text: str) -> list[int]:
    """Decode run lengths that COCO's tools write as text: five bits a character, differences from the fourth on."""
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
