"""The one form that annotated pictures have here, whatever they were written in: a row a picture, its objects in lists.

`objects` holds for each object `bbox` (x, y, width, height in pixels, as written, unchecked), `category`, `area`,
`iscrowd`, and where any picture has outlines `polygons` (x, y, x, y …) and `rle` (COCO's run lengths, not packed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from taskrecipe.core.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class Item:
    """One object in a picture."""

    bbox: list[float]
    category: str
    area: float
    iscrowd: bool = False
    polygons: list[list[float]] | None = None
    rle: dict[str, list[int]] | None = None


@dataclass
class Picture:
    """One picture and what is in it."""

    path: Path
    image_id: int
    width: int | None
    height: int | None
    objects: list[Item] = field(default_factory=list)


def as_splits(pictures: Mapping[str, Sequence[Picture]], names: Sequence[str]) -> dict[str, Any]:
    """Rows of every split, with the same classes and columns in each."""
    outlined = any(item.polygons or item.rle for split in pictures.values() for row in split for item in row.objects)
    return {split: _rows(rows, names, split, outlined=outlined) for split, rows in pictures.items()}


def picture_path(folder: Path, name: str) -> Path:
    """The file that annotations call `name`; one that is not in `folder` is refused."""
    written = PurePosixPath(name.replace("\\", "/"))
    if written.is_absolute() or ".." in written.parts or not name.strip():
        raise DataError(f"the file name {name!r} leads out of '{folder}'")
    path = folder / written
    if not path.is_file():
        raise DataError(f"there is no picture {name!r} in '{folder}'; [data].images names the folder of the pictures")
    return path


def _rows(pictures: Sequence[Picture], names: Sequence[str], split: str, *, outlined: bool) -> Dataset:
    from datasets import Dataset

    if not pictures:
        raise DataError("there are no pictures", split=split)
    columns: dict[str, list[Any]] = {
        "image": [{"path": str(picture.path), "bytes": None} for picture in pictures],
        "image_id": [picture.image_id for picture in pictures],
        "width": [picture.width for picture in pictures],
        "height": [picture.height for picture in pictures],
        "objects": [_objects(picture, names, outlined=outlined) for picture in pictures],
    }
    return Dataset.from_dict(columns, features=_features(names, outlined=outlined))


def _objects(picture: Picture, names: Sequence[str], *, outlined: bool) -> dict[str, list[Any]]:
    numbers = {name: number for number, name in enumerate(names)}
    items = picture.objects
    objects: dict[str, list[Any]] = {
        "bbox": [item.bbox for item in items],
        "category": [numbers[item.category] for item in items],
        "area": [item.area for item in items],
        "iscrowd": [item.iscrowd for item in items],
    }
    if outlined:
        objects |= {"polygons": [item.polygons for item in items], "rle": [item.rle for item in items]}
    return objects


def _features(names: Sequence[str], *, outlined: bool) -> Any:
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
