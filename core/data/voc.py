"""Pascal VOC: one XML file for each image, given as a folder, as files, or as a list of names in ImageSets.

Boxes are read as corners in pixels, which is how annotation tools write them. An object that is marked difficult counts
as a crowd, which is neither trained nor measured on. An image is looked for in `[data].images`; without that key in
JPEGImages next to the folder of annotations, and in the folder of the annotation itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from taskrecipe.data.annotations import AnnotatedImage, AnnotatedObject, find_image, make_splits, require_images
from taskrecipe.data.read_errors import explain_read_errors
from taskrecipe.errors import DataError

CORNERS = ("xmin", "ymin", "xmax", "ymax")


def load_voc(paths: Mapping[str, list[Path]], images: Path | None) -> dict[str, Any]:
    """Read every split. Classes are numbered by their sorted names, the same in all splits."""
    found: dict[str, list[AnnotatedImage]] = {}
    for split, given in paths.items():
        files = [file for path in given for file in _list_annotations(path, split)]
        found[split] = [_read_image(file, images, split, row) for row, file in enumerate(files)]
        require_images(found[split], given, split)
    names = {each.category for split in found.values() for image in split for each in image.objects}
    return make_splits(found, sorted(names))


def _list_annotations(path: Path, split: str) -> list[Path]:
    """Return the XML files that are in a folder or that a list names."""
    if path.is_dir():
        inner = path / "Annotations"
        return sorted((inner if inner.is_dir() else path).glob("*.xml"))
    if path.suffix == ".xml":
        return [path]
    folder = path.parents[2] / "Annotations" if len(path.parents) > 2 else path.parent
    with explain_read_errors(f"'{path}'", split):
        names = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    files = [folder / f"{name}.xml" for name in names]
    for file in files:
        if not file.is_file():
            raise DataError(f"'{path}' names {file.stem!r}, but there is no '{file}'", split=split)
    return files


def _read_image(file: Path, images: Path | None, split: str, row: int) -> AnnotatedImage:
    try:
        root = _parse_xml(file)
        path = _find_image(root.findtext("filename", "").strip() or file.with_suffix(".jpg").name, file, images)
        width, height = (_read_side(root.find("size"), side) for side in ("width", "height"))
    except DataError as error:
        raise DataError(f"{error} (in '{file}')", split=split, row=row, column="image") from None
    try:
        objects = [_read_object(element) for element in root.iter("object")]
    except DataError as error:
        raise DataError(f"{error} (in '{file}')", split=split, row=row, column="objects") from None
    return AnnotatedImage(path, row, width, height, objects)


def _parse_xml(file: Path) -> Xml.Element:
    content = file.read_bytes()
    # No annotation needs a document type, and its entities can fill the memory. UTF-16 has a NUL after each letter.
    if b"<!DOCTYPE" in content.replace(b"\0", b""):
        raise DataError("XML with a document type is refused")
    try:
        return Xml.fromstring(content)  # noqa: S314 - entities are refused above
    except Xml.ParseError as error:
        raise DataError(f"not XML: {error}") from None


def _find_image(name: str, file: Path, images: Path | None) -> Path:
    folders = [images] if images else [file.parent.parent / "JPEGImages", file.parent]
    folder = next((folder for folder in folders if (folder / Path(name).name).is_file()), folders[-1])
    return find_image(folder, name)


def _read_object(element: Xml.Element) -> AnnotatedObject:
    name = element.findtext("name", "").strip()
    if not name:
        raise DataError("an object has no name")
    left, top, right, bottom = (_read_number(element.find("bndbox"), corner) for corner in CORNERS)
    width, height = right - left, bottom - top
    crowd = element.findtext("difficult", "0").strip() == "1"
    return AnnotatedObject([left, top, width, height], name, width * height, crowd)


def _read_side(element: Xml.Element | None, name: str) -> int | None:
    """Return the width or height of an image; None where it is not given, or 0."""
    if element is None or not element.findtext(name, "").strip():
        return None
    side = _read_number(element, name)
    if not math.isfinite(side):
        raise DataError(f"{name} is {side}, not a number of pixels")
    return int(side) or None


def _read_number(element: Xml.Element | None, name: str) -> float:
    text = "" if element is None else element.findtext(name, "")
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{name} is {text!r}, not a number") from None
