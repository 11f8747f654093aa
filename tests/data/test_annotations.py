"""COCO json and Pascal VOC become the same rows; what does not hang together is refused with its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from taskrecipe.data.coco import load_coco
from taskrecipe.data.images import keep_encoded
from taskrecipe.data.voc import load_voc
from taskrecipe.errors import DataError

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two small images."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 10)).save(folder / name)
    return folder


def document(**changes: Any) -> dict[str, Any]:
    images = [{"id": 11, "file_name": "a.png", "width": 20, "height": 10}, {"id": 12, "file_name": "b.png"}]
    boxes = [{"id": 1, "image_id": 11, "category_id": 7, "bbox": [1, 2, 3.5, 4], "area": 9, "iscrowd": 1}]
    return {"images": images, "annotations": boxes, "categories": CATEGORIES, **changes}


def read_coco(folder: Path, content: Any, name: str = "train") -> Any:
    path = folder.parent / f"{name}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_coco({"train": [path]}, folder)["train"]


def test_coco_rows_keep_what_was_written(images: Path) -> None:
    rows = read_coco(images, document())
    assert rows.features["objects"]["category"].feature.names == ["cat", "dog"]
    first, second = keep_encoded(rows)
    assert first["objects"] == {"bbox": [[1.0, 2.0, 3.5, 4.0]], "category": [1], "area": [9.0], "iscrowd": [True]}
    assert (first["image_id"], first["width"], first["height"]) == (11, 20, 10)
    assert (second["image_id"], second["width"], second["objects"]["bbox"]) == (12, None, [])
    assert Path(first["image"]["path"]) == images / "a.png"
    assert rows[0]["image"].size == (20, 10)


def test_classes_have_one_number_in_every_split_and_file(images: Path) -> None:
    box = {"id": 1, "image_id": 11, "bbox": [1, 2, 3, 4]}
    contents = {
        "train": document(annotations=[{**box, "category_id": 7}]),
        "validation": document(annotations=[{**box, "category_id": 1}], categories=[{"id": 1, "name": "dog"}]),
        "test": document(annotations=[{**box, "category_id": 5}], categories=[{"id": 5, "name": "cow"}]),
    }
    paths = {}
    for split, content in contents.items():
        paths[split] = [images.parent / f"{split}.json"]
        paths[split][0].write_text(json.dumps(content))
    splits = load_coco(dict(reversed(paths.items())), images)
    assert list(splits) == ["test", "validation", "train"]
    assert {tuple(rows.features["objects"]["category"].feature.names) for rows in splits.values()} == {
        ("cat", "dog", "cow")
    }
    assert [splits[split][0]["objects"]["category"] for split in contents] == [[1], [1], [2]]


def test_outlines_are_kept_and_run_lengths_decoded(images: Path) -> None:
    mask = np.zeros((10, 20), dtype=np.uint8)
    mask[2:6, 3:9] = 1
    flat = mask.flatten(order="F")
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flat, [0]])))
    runs = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    mask_api = pytest.importorskip("faster_coco_eval.core.mask")
    packed = mask_api.encode(np.asfortranarray(mask))["counts"]
    packed = packed.decode() if isinstance(packed, bytes) else packed
    box = {"image_id": 11, "category_id": 7, "bbox": [3, 2, 6, 4]}
    outlines = [[[3, 2, 9, 2, 9, 6]], {"size": [10, 20], "counts": packed}, {"size": [10, 20], "counts": runs}, None]
    annotations = [{"id": number, **box, "segmentation": outline} for number, outline in enumerate(outlines)]
    objects = read_coco(images, document(annotations=annotations))[0]["objects"]
    assert objects["polygons"] == [[[3.0, 2.0, 9.0, 2.0, 9.0, 6.0]], None, None, None]
    assert [rle and rle["counts"] for rle in objects["rle"]] == [None, runs, runs, None]


def test_annotations_of_no_image_are_counted(images: Path) -> None:
    lost = {"id": 2, "image_id": 99, "category_id": 7, "bbox": [1, 2, 3, 4]}
    with pytest.warns(UserWarning, match="1 annotations in .* belong to no image"):
        assert len(read_coco(images, document(annotations=[lost]))) == 2


IMAGE = {"id": 11, "file_name": "a.png"}
BOX = {"id": 1, "image_id": 11, "category_id": 7, "bbox": [1, 2, 3, 4]}
BAD_COCO: dict[str, tuple[Any, str]] = {
    "not json": ("{", "Expecting"),
    "a list": ("[]", "is not COCO json: it needs lists 'images', 'categories'"),
    "no images": (document(images=[], annotations=[]), r"there are no images in '.*train\.json'"),
    "unknown category": (
        document(annotations=[{**BOX, "category_id": 8}]),
        r"row 0, column 'objects': the category 8 is unknown; there are 3 \(cat\), 7 \(dog\)",
    ),
    "neither polygons nor runs": (
        document(annotations=[{**BOX, "segmentation": [[1, 2, "x"]]}]),
        r"row 0, column 'objects': the segmentation \[\[1, 2, 'x'\]\] is neither polygons nor run lengths",
    ),
    "runs without a size": (
        document(annotations=[{**BOX, "segmentation": {"counts": [1, 2]}}]),
        r"row 0, column 'objects': the segmentation .* is neither polygons nor run lengths",
    ),
    "missing image": (
        document(images=[IMAGE, {"id": 12, "file_name": "c.png"}]),
        r"row 1, column 'image': there is no image 'c\.png' in .*\[data\]\.images",
    ),
    "image elsewhere": (document(images=[{"id": 11, "file_name": "../images/a.png"}]), "leads out of"),
    "absolute image": (document(images=[{"id": 11, "file_name": "/etc/passwd"}]), "leads out of"),
    "no file name": (document(images=[{"id": 11}]), "row 0, column 'image': "),
    "no id": (document(images=[{"file_name": "a.png"}]), "'id' is missing"),
    "two of one id": (document(images=[IMAGE, {**IMAGE, "file_name": "b.png"}]), "row 1.* two images have the id 11"),
    "two of one name": (document(categories=[*CATEGORIES, {"id": 9, "name": "dog"}]), "same id or name"),
    "three numbers": (document(annotations=[{**BOX, "bbox": [1, 2, 3]}]), r"row 0.*the box \[1, 2, 3\] is not four"),
    "no box": (document(annotations=[{"image_id": 11, "category_id": 7}]), "row 0.*the box None is not four"),
}


@pytest.mark.parametrize("name", BAD_COCO)
def test_coco_that_does_not_hang_together_is_refused(name: str, images: Path) -> None:
    content, message = BAD_COCO[name]
    with pytest.raises(DataError, match=message) as caught:
        read_coco(images, content)
    assert "split 'train'" in str(caught.value)
    assert "train.json'" in str(caught.value)


XML = """<annotation><filename>{name}</filename><size><width>20</width><height>10</height></size>
<object><name>dog</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>4.5</xmax><ymax>6</ymax></bndbox></object></annotation>"""


def write_voc(folder: Path, **contents: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.xml").write_text(content, encoding="utf-16" if "UTF-16" in content else "utf-8")
    return folder


def test_voc_rows_have_the_same_form(images: Path, tmp_path: Path) -> None:
    empty = "<annotation><filename>b.png</filename></annotation>"
    folder = write_voc(tmp_path / "xml", a=XML.format(name="a.png"), b=empty)
    rows = load_voc({"train": [folder]}, images)["train"]
    first, second = keep_encoded(rows)
    assert first["objects"] == {"bbox": [[1.0, 2.0, 3.5, 4.0]], "category": [0], "area": [14.0], "iscrowd": [True]}
    assert (first["width"], second["width"], second["objects"]["bbox"]) == (20, None, [])
    as_coco = read_coco(images, document(categories=[{"id": 7, "name": "dog"}]))
    assert rows.features == as_coco.features


def test_voc_in_its_usual_layout_is_read_by_a_list_of_names(tmp_path: Path) -> None:
    (tmp_path / "JPEGImages").mkdir()
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    for name in ("one", "two"):
        Image.new("RGB", (20, 10)).save(tmp_path / "JPEGImages" / f"{name}.jpg")
        write_voc(tmp_path / "Annotations", **{name: XML.format(name=f"{name}.jpg")})
    listed = tmp_path / "ImageSets" / "Main" / "train.txt"
    listed.write_text("two\n")
    assert len(load_voc({"train": [tmp_path]}, None)["train"]) == 2
    rows = keep_encoded(load_voc({"train": [listed]}, None)["train"])
    assert [Path(image["path"]).name for image in rows["image"]] == ["two.jpg"]
    listed.write_text("three\n")
    with pytest.raises(DataError, match="names 'three', but there is no"):
        load_voc({"train": [listed]}, None)


BAD_VOC = {
    "not xml": ("<annotation>", "column 'image': not XML"),
    "entities": ('<!DOCTYPE x [<!ENTITY a "b">]><annotation/>', "document type is refused"),
    "entities in UTF-16": ('<!DOCTYPE x [<!ENTITY a "UTF-16">]><annotation/>', "document type is refused"),
    "missing image": (XML.format(name="c.png"), r"there is no image 'c\.png'"),
    "image elsewhere": (XML.format(name="../xml/a.xml"), "leads out of"),
    "no name": (XML.format(name="a.png").replace("<name>dog</name>", ""), "column 'objects': an object has no name"),
    "no number": (XML.format(name="a.png").replace("4.5", "wide"), "xmax is 'wide', not a number"),
    "no box": (XML.format(name="a.png").replace("bndbox", "box"), "xmin is '', not a number"),
    "no side": (XML.format(name="a.png").replace("<width>20", "<width>nan"), "width is nan, not a number of pixels"),
}


@pytest.mark.parametrize("name", BAD_VOC)
def test_voc_that_does_not_hang_together_is_refused(name: str, images: Path, tmp_path: Path) -> None:
    content, message = BAD_VOC[name]
    folder = write_voc(tmp_path / "xml", a=content)
    with pytest.raises(DataError, match=message) as caught:
        load_voc({"train": [folder]}, images)
    assert (caught.value.split, caught.value.row) == ("train", 0)
    assert str(caught.value).endswith(f"(in '{folder / 'a.xml'}')")


def test_a_folder_or_list_without_annotations_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"split 'train': there are no images in '{tmp_path}'"):
        load_voc({"train": [tmp_path]}, None)
    (tmp_path / "train.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"split 'train': '.*train\.txt': the text is not UTF-8"):
        load_voc({"train": [tmp_path / "train.txt"]}, None)


def test_both_forms_of_real_annotations_agree(shared_data: Path) -> None:
    folder = shared_data / "bccd"
    splits = {split: [folder / f"coco_{split}.json"] for split in ("train", "validation", "test")}
    by_coco = load_coco(splits, folder / "images")
    by_voc = load_voc({"train": [folder / "voc"]}, folder / "images")["train"]
    assert {split: len(rows) for split, rows in by_coco.items()} == {"train": 205, "validation": 87, "test": 72}
    drawn = {image: boxes for rows in by_coco.values() for image, boxes in _drawn(rows).items()}
    for image, boxes in _drawn(by_voc).items():
        assert [(name, box) for name, box in boxes if box[2] and box[3]] == drawn[image]  # the json leaves out two


def _drawn(rows: Any) -> dict[str, list[tuple[str, list[float]]]]:
    names = rows.features["objects"]["category"].feature.names
    return {
        Path(row["image"]["path"]).name: sorted(
            (names[category], box)
            for category, box in zip(row["objects"]["category"], row["objects"]["bbox"], strict=True)
        )
        for row in keep_encoded(rows)
    }
