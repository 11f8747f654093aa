"""Pascal VOC: an XML file a picture, given as a folder, as files, or as a list of names in ImageSets.

Boxes are taken as corners in pixels, which is how annotation tools write them; what is marked difficult counts as a
crowd, which is neither trained nor measured on. A picture is looked for in `[data].images`, in JPEGImages beside the
folder of annotations, and beside the annotation itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from taskrecipe.core.data.annotations import Item, Picture, as_splits, picture_path
from taskrecipe.core.errors import DataError

CORNERS = ("xmin", "ymin", "xmax", "ymax")


def load(paths: Mapping[str, list[Path]], images: Path | None) -> dict[str, Any]:
    """Read every split; classes are numbered by their sorted names, the same in all splits."""
    pictures: dict[str, list[Picture]] = {}
    for split, given in paths.items():
        files = [file for path in given for file in _annotations(path, split)]
        pictures[split] = [_picture(file, images, split, row) for row, file in enumerate(files)]
    names = {item.category for split in pictures.values() for picture in split for item in picture.objects}
    return as_splits(pictures, sorted(names))


def _annotations(path: Path, split: str) -> list[Path]:
    """The XML files that a folder holds or a list names."""
    if path.is_dir():
        inner = path / "Annotations"
        return sorted((inner if inner.is_dir() else path).glob("*.xml"))
    if path.suffix == ".xml":
        return [path]
    folder = path.parents[2] / "Annotations" if len(path.parents) > 2 else path.parent
    names = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    files = [folder / f"{name}.xml" for name in names]
    for file in files:
        if not file.is_file():
            raise DataError(f"'{path}' names {file.stem!r}, but there is no '{file}'", split=split)
    return files


def _picture(file: Path, images: Path | None, split: str, row: int) -> Picture:
    try:
        root = _parsed(file)
        path = _find(root.findtext("filename", "").strip() or file.with_suffix(".jpg").name, file, images)
        size = [_number(root.find("size"), side) for side in ("width", "height")]
    except DataError as error:
        raise DataError(f"{error} (in '{file}')", split=split, row=row, column="image") from None
    try:
        objects = [_item(element) for element in root.iter("object")]
    except DataError as error:
        raise DataError(f"{error} (in '{file}')", split=split, row=row, column="objects") from None
    width, height = (int(side) if side else None for side in size)
    return Picture(path, row, width, height, objects)


def _parsed(file: Path) -> Xml.Element:
    content = file.read_bytes()
    if b"<!DOCTYPE" in content.replace(
        b"\0", b""
    ):  # in UTF-16 too; no annotation needs one, and its entities can blow up
        raise DataError("XML with a document type is refused")
    try:
        return Xml.fromstring(content)  # noqa: S314 - entities are refused above
    except Xml.ParseError as error:
        raise DataError(f"not XML: {error}") from None


def _find(name: str, file: Path, images: Path | None) -> Path:
    folders = [images] if images else [file.parent.parent / "JPEGImages", file.parent]
    folder = next((folder for folder in folders if (folder / Path(name).name).is_file()), folders[-1])
    return picture_path(folder, name)


def _item(element: Xml.Element) -> Item:
    name = element.findtext("name", "").strip()
    if not name:
        raise DataError("an object has no name")
    left, top, right, bottom = (_number(element.find("bndbox"), corner, required=True) for corner in CORNERS)
    width, height = right - left, bottom - top
    crowd = element.findtext("difficult", "0").strip() == "1"
    return Item([left, top, width, height], name, width * height, crowd)


def _number(element: Xml.Element | None, name: str, *, required: bool = False) -> float:
    text = "" if element is None else element.findtext(name, "")
    try:
        return float(text) if text.strip() or required else 0.0
    except ValueError:
        raise DataError(f"{name} is {text!r}, not a number") from None
