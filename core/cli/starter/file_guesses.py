"""Guesses from files that are no tables: COCO and SQuAD json, folders of images, Pascal VOC, plain text."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from taskrecipe.cli.starter.guess import Guess
from taskrecipe.data.image_folders import IMAGE_ENDINGS
from taskrecipe.errors import DataError

MAPS = ("labels", "annotations", "masks", "maps", "segmentation")
IMAGES = ("images", "imgs", "JPEGImages")


def guess_coco(path: Path, recipe: str) -> Guess:
    """Guess from COCO json: the folder of images, and whether boxes must be repaired."""
    content = _read_json(path)
    images, annotations = content.get("images", []), content.get("annotations", [])
    outlined = sum(bool(one.get("segmentation")) for one in annotations)
    if not annotations:
        raise DataError(f"'{path}' has {len(images)} images but no annotations: there is nothing to learn")
    if recipe == "instance_segmentation" and not outlined:
        raise DataError(f"'{path}' has boxes but no outlines (segmentation): use recipe 'detection'")
    names = [str(category.get("name")) for category in content.get("categories", [])]
    guess = Guess(
        notes=[f"{len(images):,} images, {len(annotations):,} objects of {len(names)} classes: {_list(names)}"]
    )
    folder = _find_images(path, [str(image.get("file_name", "")) for image in images[:50]])
    if folder != path.parent:
        guess.data["images"] = folder, "guessed: the first images of the file are there"
    invalid = _count_invalid(images, annotations)
    if invalid and recipe == "detection":
        guess.task["invalid_boxes"] = "repair", f"{invalid:,} boxes have no area or reach beyond their image"
    sides = sorted(max(int(image.get("width") or 0), int(image.get("height") or 0)) for image in images)
    middle = sides[len(sides) // 2] if sides else 0
    if middle:
        size = min(640, -(-middle // 32) * 32)
        guess.task["image_size"] = size, f"the longer side of images is about {middle} pixels"
    return guess


def guess_voc(path: Path, recipe: str) -> Guess:
    """Guess from a folder of Pascal VOC's annotations."""
    if recipe != "detection":
        raise DataError(f"'{path}' holds Pascal VOC's boxes, which are for recipe 'detection'")
    files = sorted(path.glob("*.xml"))
    guess = Guess(notes=[f"{len(files):,} annotated images"])
    neighbors = [path.parent / name for name in IMAGES if (path.parent / name).is_dir()]
    if not any((path / file.with_suffix(ending).name).exists() for file in files[:20] for ending in (".jpg", ".png")):
        if not neighbors:
            raise DataError(f"no images lie in '{path}', and none of the folders {', '.join(IMAGES)} is next to it")
        guess.data["images"] = neighbors[0], "guessed: the images are not next to their annotations"
    return guess


def guess_squad(path: Path) -> Guess:
    """Guess from SQuAD's json whether questions may have no answer."""
    articles = _read_json(path).get("data", [])
    questions = [qa for article in articles for part in article["paragraphs"] for qa in part["qas"]]
    silent = sum(not qa.get("answers") for qa in questions)
    guess = Guess(notes=[f"{len(questions):,} questions, {silent:,} of them without an answer"])
    if silent:
        guess.task["no_answer"] = True, f"{silent:,} questions have no answer, as in SQuAD 2.0"
    return guess


def guess_image_folder(path: Path, train: Path, recipe: str) -> Guess:
    """Guess from a folder of images: classes by their folders, or maps in a folder next to them."""
    if recipe == "semantic_segmentation":
        return _guess_maps(path)
    images = [file for file in train.rglob("*") if file.suffix.lower() in IMAGE_ENDINGS]
    if not images:
        raise DataError(f"there are no images in '{train}'; their names end in {', '.join(sorted(IMAGE_ENDINGS))}")
    if recipe == "mim":
        return Guess(notes=[f"{len(images):,} images"])
    classes = Counter(file.relative_to(train).parts[0] for file in images if file.parent != train)
    if recipe != "image_classification":
        raise DataError(f"'{path}' is a folder of images; recipe {recipe!r} needs annotations too, such as COCO json")
    if len(classes) < 2:
        raise DataError(
            f"'{train}' has {len(images):,} images, but not in folders of at least two classes: {_list(classes)}"
        )
    return Guess(notes=[f"{len(images):,} images of {len(classes)} classes: {_list(classes)}"])


def _guess_maps(path: Path) -> Guess:
    folders = {folder.name.lower(): folder for folder in path.iterdir() if folder.is_dir()}
    images = next((folders[name.lower()] for name in IMAGES if name.lower() in folders), None)
    maps = next((folders[name] for name in MAPS if name in folders), None)
    if images is None or maps is None:
        raise DataError(
            f"'{path}' must hold a folder of images ({', '.join(IMAGES)}) and one of label maps ({', '.join(MAPS)}) "
            f"of the same names; found {_list(folders)}"
        )
    return Guess(files={"train": (images, "")}, maps={"train": (maps, "guessed: its files are named like the images")})


def guess_plain_text(path: Path, recipe: str) -> Guess:
    """Guess from a text file whether its lines are one running text or documents."""
    if recipe not in ("clm", "mlm"):
        raise DataError(f"'{path}' is plain text, which is for recipes 'clm' and 'mlm'; {recipe!r} needs columns")
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = [line for _, line in zip(range(10_000), file, strict=False)]
    words = sum(len(line.split()) for line in lines)
    guess = Guess(notes=[f"{len(lines):,} lines read, {words:,} words in them"])
    blank = sum(not line.strip() for line in lines)
    if recipe == "clm" and blank:
        guess.task["separator"] = "newline", f"{blank:,} lines are blank, so lines seem to be parts of one text"
    return guess


def _find_images(path: Path, names: list[str]) -> Path:
    """Return the folder in which the images of a COCO file are."""
    folders = [folder for folder in sorted(path.parent.iterdir()) if folder.is_dir()]
    above = [path.parent.parent / name for name in IMAGES]
    for folder in [path.parent, *folders, *above, *(f for a in above if a.is_dir() for f in a.iterdir() if f.is_dir())]:
        if names and all((folder / name).is_file() for name in names):
            return folder
    raise DataError(
        f"the images of '{path}', such as {names[0] if names else '?'!r}, are not next to it, nor in a folder there; "
        "write the spec without --data and name their folder in [data].images"
    )


def _count_invalid(images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> int:
    sizes = {image.get("id"): (image.get("width"), image.get("height")) for image in images}
    return sum(not _is_inside(one.get("bbox"), *sizes.get(one.get("image_id"), (None, None))) for one in annotations)


def _is_inside(box: Any, width: Any, height: Any) -> bool:
    if not isinstance(box, list) or len(box) != 4 or box[2] <= 0 or box[3] <= 0 or box[0] < 0 or box[1] < 0:
        return False
    return not (width and height) or (box[0] + box[2] <= width and box[1] + box[3] <= height)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise DataError(f"'{path}' can't be read: {error}") from None


def _list(names: Any) -> str:
    shown = list(names)
    return (
        ", ".join(map(str, shown[:6])) + (f", … ({len(shown)} in all)" if len(shown) > 6 else "") if shown else "none"
    )
