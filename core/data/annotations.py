"""The one form of annotated images, whatever format they were written in: one row for each image, objects in lists.

`objects` holds for each object `bbox` (x, y, width, height in pixels, as written, unchecked), `category`, `area` and
`iscrowd`. Where any image has outlines, it also holds `polygons` (x, y, x, y …) and `rle` (COCO's decoded run lengths).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class AnnotatedObject:
    """One object in an image."""

    bbox: list[float]
    category: str
    area: float
    iscrowd: bool = False
    polygons: list[list[float]] | None = None
    rle: dict[str, list[int]] | None = None


@dataclass
class AnnotatedImage:
    """One image and the objects in it."""

    path: Path
    image_id: int
    width: int | None
    height: int | None
    objects: list[AnnotatedObject] = field(default_factory=list)


def make_splits(images: Mapping[str, Sequence[AnnotatedImage]], names: Sequence[str]) -> dict[str, Dataset]:
    """Return the rows of every split. All splits have the same classes and columns."""
    objects = (each for split in images.values() for image in split for each in image.objects)
    outlined = any(each.polygons or each.rle for each in objects)
    return {split: _make_rows(found, names, outlined=outlined) for split, found in images.items()}


def find_image(folder: Path, name: str) -> Path:
    """Return the file that annotations call `name`. A file outside `folder` is refused."""
    written = PurePosixPath(name.replace("\\", "/"))
    if written.is_absolute() or ".." in written.parts or not name.strip():
        raise DataError(f"the file name {name!r} leads out of '{folder}'")
    path = folder / written
    if not path.is_file():
        raise DataError(f"there is no image {name!r} in '{folder}'; [data].images names the folder of the images")
    return path


def require_images(images: Sequence[AnnotatedImage], paths: Sequence[Path], split: str) -> None:
    """Refuse a split without any image."""
    if not images:
        raise DataError(f"there are no images in {', '.join(repr(str(path)) for path in paths[:5])}", split=split)


def _make_rows(images: Sequence[AnnotatedImage], names: Sequence[str], *, outlined: bool) -> Dataset:
    from datasets import Dataset

    columns: dict[str, list[Any]] = {
        "image": [{"path": str(image.path), "bytes": None} for image in images],
        "image_id": [image.image_id for image in images],
        "width": [image.width for image in images],
        "height": [image.height for image in images],
        "objects": [_make_object_lists(image, names, outlined=outlined) for image in images],
    }
    return Dataset.from_dict(columns, features=_make_features(names, outlined=outlined))


def _make_object_lists(image: AnnotatedImage, names: Sequence[str], *, outlined: bool) -> dict[str, list[Any]]:
    numbers = {name: number for number, name in enumerate(names)}
    lists: dict[str, list[Any]] = {
        "bbox": [each.bbox for each in image.objects],
        "category": [numbers[each.category] for each in image.objects],
        "area": [each.area for each in image.objects],
        "iscrowd": [each.iscrowd for each in image.objects],
    }
    if outlined:
        lists |= {"polygons": [each.polygons for each in image.objects], "rle": [each.rle for each in image.objects]}
    return lists


def _make_features(names: Sequence[str], *, outlined: bool) -> Any:
    from datasets import ClassLabel, Features, Image, List, Value

    numbers = List(Value("float64"))
    objects: dict[str, Any] = {
        "bbox": List(numbers),
        "category": List(ClassLabel(names=list(names))),
        "area": List(Value("float64")),
        "iscrowd": List(Value("bool")),
    }
    if outlined:
        runs = {"size": List(Value("int64")), "counts": List(Value("int64"))}
        objects |= {"polygons": List(List(numbers)), "rle": List(runs)}
    sizes = {"image_id": Value("int64"), "width": Value("int64"), "height": Value("int64")}
    return Features({"image": Image(), **sizes, "objects": objects})
