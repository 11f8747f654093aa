"""Hostile data: every case is refused with its split and its file, record, row or column, or counted in a warning.

A case is a line in one of the tables below: its name, what is wrong with the training data, and words of the answer.
An expectation that begins with "warns" is a warning of data that is used; any other is an error. Nothing is trained.
"""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from taskrecipe.data.load import load_data
from taskrecipe.errors import DataError
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.spec import Spec

Files = dict[str, bytes | str]


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test reads out of the caches of whoever runs it."""
    import datasets

    folder = tmp_path_factory.mktemp("caches")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    monkeypatch.setenv("TASKRECIPE_CACHE", str(folder / "taskrecipe"))


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def load(folder: Path, recipe: str, task: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """Load and check data as a run does, and return the warnings."""
    files = {split: str(folder / path) for split, path in data.pop("files").items()}
    for key in ("images", "maps"):
        if key in data:
            given = data[key]
            data[key] = (
                {split: str(folder / path) for split, path in given.items()}
                if isinstance(given, dict)
                else str(folder / given)
            )
    content = {
        "spec_version": 1,
        "recipe": recipe,
        "task": task,
        "model": {"type": "bert"},
        "train": {"learning_rate": 1e-3, "epochs": 1},
        "data": {"files": files, **data},
    }
    spec = Spec.model_validate(content)
    made = installed().recipe(recipe)(spec)
    loaded = load_data(spec, made, folder / "sample")
    if recipe == "detection":  # boxes are checked when they are turned into pixels of the upright image
        made.processor = SimpleNamespace(do_pad=False)
        with loaded.locate_rows():
            made.preprocess(loaded.splits["train"], "train")
    return loaded.warnings


def expect(answer: str, act: Callable[[], list[str]]) -> None:
    """Require an error with these words that says where, or a warning with them, within two seconds."""
    started = time.process_time()
    if answer.startswith("warns "):
        assert any(answer.removeprefix("warns ") in note for note in act())
    else:
        with pytest.raises(DataError) as caught:
            act()
        message = str(caught.value)
        assert answer in message
        assert "split 'train'" in message or "split 'validation'" in message
        assert any(word in message for word in ("line ", "record ", "row ", "column ", ".csv", ".json", "/", "split"))
    assert time.process_time() - started < 2


# Tables of sentences ---------------------------------------------------------------------------------

HEADER = "sentence,label"
GOOD = f"{HEADER}\nfine,0\nbad,1\n"
LONG = "x" * 10_000_000

TABLES: dict[str, tuple[str, bytes | str, dict[str, Any], str]] = {
    "empty file": ("train.csv", "", {}, "train.csv': there are no rows"),
    "only a header": ("train.csv", HEADER + "\n", {}, "train.csv': there are no rows"),
    "only blank lines": ("train.csv", "\n\n\r\n", {}, "there are no rows"),
    "missing column": ("train.csv", "text,label\na,0\nb,1\n", {}, "the recipe reads 'sentence'"),
    "column mapped to nothing": (
        "train.csv",
        GOOD,
        {"columns": {"sentence": "txt"}},
        "[data.columns] sentence = 'txt'",
    ),
    "two columns of one name": ("train.csv", "sentence,sentence,label\na,b,0\n", {}, "line 1: the header names"),
    "too many fields": ("train.csv", GOOD + "a,b,1\n", {}, "train.csv': line 4 has 3 fields"),
    "too few fields": ("train.csv", GOOD + "a\n", {}, "train.csv': line 4 has 1 fields"),
    "stray quote over rows": ("train.csv", GOOD + '"a,0\nb",1\n', {}, "line 4: a quote opens a cell that goes on to"),
    "quote never closed": ("train.csv", GOOD + '"a,0\nb,1\n', {}, "line 4: a quote opens a cell and is never closed"),
    "text after a quote": ("train.csv", GOOD + '"a"b,0\n', {}, "line 4: a quote opens a cell, and another has text"),
    "quoted tsv": ("train.tsv", 'sentence\tlabel\n"a"\t0\n"b"\t1\n', {}, "warns all cells of column 'sentence' are in"),
    "semicolons": ("train.csv", GOOD.replace(",", ";"), {}, "warns is separated by ';', not by commas"),
    "Windows text": ("train.csv", GOOD.replace("fine", "café").encode("cp1252"), {}, "warns read as cp1252"),
    "Russian text": ("train.csv", GOOD.replace("fine", "привет").encode("cp1251"), {}, "line 2 is not UTF-8"),
    "Japanese text": ("train.csv", GOOD.replace("fine", "テスト").encode("euc-jp"), {}, "line 2 is not UTF-8"),
    "UTF-16 cut": ("train.csv", GOOD.encode("utf-16")[:-1], {}, "is not UTF-16"),
    "not the given encoding": ("train.csv", GOOD.replace("fine", "é"), {"encoding": "ascii"}, "line 2 is not ascii"),
    "label missing": (
        "train.csv",
        GOOD + "a,\n",
        {},
        "train.csv' record 3 (line 4), column 'label': there is no value",
    ),
    "label a float": (
        "train.csv",
        f"{HEADER}\na,0.0\nb,0.5\n",
        {},
        "record 2 (line 3), column 'label': 0.5 is a float",
    ),
    "one class": ("train.csv", f"{HEADER}\na,1\nb,1\n", {}, "there is only one class"),
    "text missing": ("train.csv", GOOD + ",1\n", {}, "record 3 (line 4), column 'sentence': there is no text"),
    "numbers for text": (
        "train.csv",
        f"{HEADER}\n1,0\n2,1\n",
        {},
        "record 1 (line 2), column 'sentence': 1 is not a text",
    ),
    "blank text": ("train.csv", GOOD + "  ,1\n", {}, "warns 1 of 3 texts are blank"),
    "NUL in text": ("train.csv", GOOD + "a\0b,1\n", {}, "warns 1 of 3 texts hold NUL characters"),
    "a row of 10 MB": ("train.csv", GOOD + f"{LONG},1\n", {}, "warns 1 of 3 texts are a megabyte"),
    "overlap": ("train.csv", GOOD + "other,0\n", {}, "warns 1 of 2 rows are also in 'train'"),
    "cut gzip": ("train.csv.gz", gzip.compress(GOOD.encode() * 99)[:-9], {}, "the file ends too early"),
    "not gzip": ("train.csv.gz", GOOD, {}, "train.csv.gz': "),
    "gzip with zeros": ("train.csv.gz", gzip.compress(GOOD.encode())[:10] + b"\0" * 40, {}, "train.csv.gz': "),
    "line break in a lone column": ("train.csv", 'sentence\n"a\nb"\n', {}, "warns 1 cells hold line breaks"),
    "a line that is no JSON": ("train.jsonl", '{"sentence": "a", "label": 0}\n{"sent\n', {}, "line 2 is not JSON"),
    "a line that is no object": ("train.jsonl", '{"sentence": "a", "label": 0}\n[1]\n', {}, "line 2 is not an object"),
    "JSON in Latin-1": ("train.jsonl", '{"sentence": "é", "label": 0}'.encode("latin-1"), {}, "line 1 is not UTF-8"),
    "JSON that is cut": ("train.json", '[{"sentence": "a", ', {}, "train.json': "),
    "JSON nested deeply": ("train.jsonl", "[" * 100_000, {}, "train.jsonl': "),
    "text and number as label": (
        "train.jsonl",
        '{"sentence": "a", "label": "x"}\n{"sentence": "b", "label": 1}\n',
        {},
        "all rows must have a text, or all a whole number",
    ),
    "null text": (
        "train.jsonl",
        '{"sentence": "a", "label": 0}\n\n{"sentence": null, "label": 1}\n',
        {},
        "train.jsonl' record 2 (line 3), column 'sentence': there is no text",
    ),
    "no parquet": ("train.parquet", "PAR1", {}, "train.parquet': "),
    "cut parquet": ("train.parquet", b"PAR1" + b"\0" * 100 + b"PAR1", {}, "train.parquet': "),
    "unknown ending": ("train.dat", GOOD, {}, "train.dat tell no common format"),
    "key of another format": ("train.jsonl", '{"a": 1}\n', {"header": False}, "[data].header is for csv and tsv"),
    "held out and bad": (
        "train.csv",
        f"{HEADER}\n" + "a,\n" * 4,
        {"holdout": 0.5},
        "train.csv' record ",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path) -> None:
    file, content, data, answer = TABLES[name]
    validation = f"{HEADER}\nother,0\nlast,1\n" if "line break" not in name else "sentence\nz\n"
    write(tmp_path, {file: content, "validation.csv": validation})
    files = {"train": file} | ({} if "holdout" in data else {"validation": "validation.csv"})
    recipe, task = ("mlm", {}) if "line break" in name else ("glue", {"name": "single"})
    columns = {"columns": {"text": "sentence"}} if recipe == "mlm" else {}
    expect(answer, lambda: load(tmp_path, recipe, task, {"files": files, **columns, **data}))


def test_nothing_in_a_special_file_is_read(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "train.csv")
    write(tmp_path, {"validation.csv": GOOD})
    files = {"train": "train.csv", "validation": "validation.csv"}
    expect("is neither a file nor a folder", lambda: load(tmp_path, "glue", {"name": "single"}, {"files": files}))


# Rows of other tasks ---------------------------------------------------------------------------------

Rows = list[dict[str, Any]]
CHOICE = {"context": "a", "ending0": "b", "ending1": "c", "ending2": "d", "label": 0}
ANSWER = {"question": "q", "context": "the answer", "answers": {"text": ["answer"], "answer_start": [4]}}
TAGGED = {"tokens": ["a", "b"], "tags": ["O", "B-X"]}
PAIR = {"text1": "a", "text2": "b", "score": 1.0}
TRANSLATED = {"source": "a", "target": "b"}

ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "an ending missing": ("swag", CHOICE, {"ending2": None}, "every row must have 3 endings"),
    "label beyond the endings": ("swag", CHOICE, {"label": 3}, "0 to 2; found 3"),
    "label below the endings": ("swag", CHOICE, {"label": -1}, "0 to 2; found -1"),
    "label of no ending": ("swag", CHOICE, {"label": None}, "column 'label'"),
    "no context": ("swag", CHOICE, {"context": None}, "column 'context'"),
    "answer elsewhere": (
        "question_answering",
        ANSWER,
        {"answers": {"text": ["answer"], "answer_start": [0]}},
        "'answers'",
    ),
    "answer beyond": (
        "question_answering",
        ANSWER,
        {"answers": {"text": ["answer"], "answer_start": [99]}},
        "'answers'",
    ),
    "answer before": (
        "question_answering",
        ANSWER,
        {"answers": {"text": ["answer"], "answer_start": [-1]}},
        "'answers'",
    ),
    "more texts than starts": (
        "question_answering",
        ANSWER,
        {"answers": {"text": ["answer", "the"], "answer_start": [4]}},
        "'answers'",
    ),
    "no answer": ("question_answering", ANSWER, {"answers": {"text": [], "answer_start": []}}, "'answers'"),
    "no question": ("question_answering", ANSWER, {"question": None}, "column 'question': there is no text"),
    "fewer tags than words": ("token_classification", TAGGED, {"tags": ["O"]}, "train.jsonl' record 2 (line 2)"),
    "a tag missing": ("token_classification", TAGGED, {"tags": ["O", None]}, "train.jsonl' record 2 (line 2)"),
    "no words": ("token_classification", TAGGED, {"tokens": None, "tags": None}, "train.jsonl' record 2 (line 2)"),
    "no score": ("two_tower", PAIR, {"score": None}, "column 'score': there is no value"),
    "no second text": ("two_tower", PAIR, {"text2": None}, "column 'text2': there is no text"),
    "no target": ("seq2seq", TRANSLATED, {"target": None}, "column 'target': there is no text"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, tmp_path: Path) -> None:
    recipe, good, change, answer = ROWS[name]
    task = {"objective": "cosine"} if recipe == "two_tower" else {}
    lines = [json.dumps(good), json.dumps({**good, **change})]
    write(tmp_path, {"train.jsonl": "\n".join(lines) + "\n", "validation.jsonl": json.dumps(good) + "\n"})
    files = {"train": "train.jsonl", "validation": "validation.jsonl"}
    expect(answer, lambda: load(tmp_path, recipe, task, {"files": files}))


# Images ----------------------------------------------------------------------------------------------


def encode(mode: str = "RGB", size: tuple[int, int] = (8, 8), format: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.new(mode, size).save(content, format)
    return content.getvalue()


def bomb() -> bytes:
    """A PNG whose header claims more pixels than may be decoded."""
    import struct
    import zlib

    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + encode()[33:]


IMAGES: dict[str, tuple[str, bytes, str]] = {
    "0 bytes": ("x.png", b"", "is empty: it has 0 bytes"),
    "text": ("x.png", b"not an image at all", "is damaged, or not one of"),
    "cut JPEG": ("x.jpg", encode(size=(200, 200), format="JPEG")[:400], "x.jpg"),
    "cut PNG": ("x.png", encode(size=(99, 99))[:80], "x.png"),
    "decompression bomb": ("x.png", bomb(), "which is refused as a decompression bomb"),
    "a format that is not opened": ("x.png", encode(format="ICO"), "is damaged, or not one of"),
    "a program": ("x.jpg", b"\x7fELF" + bytes(200), "is damaged, or not one of"),
    "PostScript": ("x.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is damaged, or not one of"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, tmp_path: Path) -> None:
    file, content, answer = IMAGES[name]
    noise = {f"{split}/{label}/a.png": encode() for split in ("train", "validation") for label in ("cat", "dog")}
    write(tmp_path, {**noise, f"train/dog/{file}": content})
    files = {"train": "train", "validation": "validation"}
    expect(answer, lambda: load(tmp_path, "image_classification", {}, {"files": files}))


FOLDERS: dict[str, tuple[Files, str]] = {
    "no images": ({"train/readme.txt": "x"}, "there are no images in"),
    "image beside the classes": ({"train/cat/a.png": encode(), "train/a.png": encode()}, "lie at different depths"),
    "one class": ({"train/cat/a.png": encode(), "train/cat/b.png": encode()}, "column 'label'"),
    "a file that is no image": (
        {"train/cat/a.png": encode(), "train/dog/b.png": encode(), "train/dog/x.db": "x"},
        "warns 1 files in",
    ),
    "splits as classes": (
        {f"train/{split}/{label}/a.png": encode() for split in ("train", "val") for label in ("cat", "dog")},
        "warns holds folders of splits",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_images(name: str, tmp_path: Path) -> None:
    content, answer = FOLDERS[name]
    write(tmp_path, {**content, "validation/cat/a.png": encode(), "validation/dog/a.png": encode()})
    files = {"train": "train", "validation": "validation"}
    expect(answer, lambda: load(tmp_path, "image_classification", {}, {"files": files}))


def encode_map(values: object, format: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.array(values, dtype=np.uint8)).save(content, format)
    return content.getvalue()


MAP = encode_map([[0, 1], [1, 0]])
MAPS: dict[str, tuple[Files, str]] = {
    "no map": ({}, "1 of 2 images have no label map"),
    "another size": ({"labels/b.png": encode_map([[0, 1, 1]])}, "the map has 3×1 pixels"),
    "colors": ({"labels/b.png": encode(size=(2, 2))}, "must have one class number for each pixel"),
    "JPEG": ({"labels/b.jpg": encode_map([[0, 1], [1, 0]], "JPEG")}, "b.jpg"),
    "empty": ({"labels/b.png": b""}, "is empty: it has 0 bytes"),
    "two maps": ({"labels/b.png": MAP, "labels/b.bmp": MAP}, "have the same name"),
}


@pytest.mark.parametrize("name", MAPS)
def test_label_maps(name: str, tmp_path: Path) -> None:
    content, answer = MAPS[name]
    images = {f"images/{image}.png": encode(size=(2, 2)) for image in "ab"}
    write(
        tmp_path, {**images, "labels/a.png": MAP, "val/a.png": encode(size=(2, 2)), "val_labels/a.png": MAP, **content}
    )
    data = {"files": {"train": "images", "validation": "val"}, "maps": {"train": "labels", "validation": "val_labels"}}
    expect(answer, lambda: load(tmp_path, "semantic_segmentation", {}, data))


# Boxes -----------------------------------------------------------------------------------------------

NAMES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]


def coco(*boxes: Any, category: int = 1, file: str = "a.png", **changes: Any) -> str:
    objects = [{"id": n, "image_id": 1, "category_id": category, "bbox": box} for n, box in enumerate(boxes)]
    good = {"id": 99, "image_id": 2, "category_id": 2, "bbox": [1, 1, 4, 4]}
    images = [{"id": 1, "file_name": file}, {"id": 2, "file_name": "b.png"}]
    return json.dumps({"images": images, "annotations": [*objects, good], "categories": NAMES, **changes})


BOXES: dict[str, tuple[str, str]] = {
    "negative width": (coco([2, 2, -1, 3]), "column 'objects'"),
    "zero width": (coco([2, 2, 0, 3]), "column 'objects'"),
    "outside": (coco([100, 100, 5, 5]), "column 'objects'"),
    "beyond the edge": (coco([6, 6, 50, 50]), "column 'objects'"),
    "NaN": (coco([float("nan"), 1, 2, 2]), "column 'objects'"),
    "infinite": (coco([1, 1, float("inf"), 2]), "column 'objects'"),
    "shares of the image": (coco([0.1, 0.1, 0.5, 0.5], [0.2, 0.2, 0.1, 0.1]), "column 'objects'"),
    "three numbers": (coco([1, 1, 2]), "the box [1, 1, 2] is not four numbers"),
    "text": (coco(["1", 1, 2, 2]), "is not four numbers"),
    "no box": (coco(None), "the box None is not four numbers"),
    "unknown category": (coco([1, 1, 2, 2], category=7), "the category 7 is unknown"),
    "missing image": (coco([1, 1, 2, 2], file="none.png"), "there is no image 'none.png'"),
    "image outside": (coco([1, 1, 2, 2], file="../../etc/passwd"), "leads out of"),
    "absolute image": (coco([1, 1, 2, 2], file="/etc/passwd"), "leads out of"),
    "no images": (coco(images=[], annotations=[]), "there are no images in"),
    "two images of one id": (coco(images=[{"id": 1, "file_name": "a.png"}] * 2), "two images have the id 1"),
    "two categories of one name": (coco(categories=[{"id": n, "name": "x"} for n in (1, 2)]), "two categories"),
    "objects of other images": (
        coco(
            annotations=[
                {"image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4]},
                {"image_id": 9, "category_id": 1, "bbox": [1, 1, 4, 4]},
            ]
        ),
        "warns 1 annotations in",
    ),
    "no categories": (json.dumps({"images": [], "annotations": []}), "is not COCO json"),
    "broken": ('{"images": [', "train.json"),
}


def images_for_boxes() -> Iterator[tuple[str, bytes]]:
    for name in ("a.png", "b.png"):
        yield f"images/{name}", encode(size=(16, 16))


@pytest.mark.parametrize("name", BOXES)
def test_boxes(name: str, tmp_path: Path) -> None:
    content, answer = BOXES[name]
    write(tmp_path, {**dict(images_for_boxes()), "train.json": content, "validation.json": coco([1, 2, 3, 4])})
    data = {"files": {"train": "train.json", "validation": "validation.json"}, "images": "images"}
    expect(answer, lambda: load(tmp_path, "detection", {}, data))


OBJECTS = {"bbox": [[1, 1, 4, 4], [2, 2, 5, 5]], "category": ["cat", "dog"]}
LINES: dict[str, tuple[dict[str, Any], str]] = {
    "image elsewhere": (
        {"image": "c.png"},
        "train.jsonl' record 2 (line 2), column 'image': there is no image 'c.png'",
    ),
    "image outside": ({"image": "../x.png"}, "train.jsonl' record 2 (line 2), column 'image': the file name"),
    "no image": ({"image": None}, "train.jsonl' record 2 (line 2), column 'image': there is no image"),
    "fewer categories": (
        {"objects": {**OBJECTS, "category": ["cat"]}},
        "train.jsonl' record 2 (line 2), column 'objects'",
    ),
    "zero height": (
        {"objects": {**OBJECTS, "bbox": [[1, 1, 4, 0], [2, 2, 5, 5]]}},
        "record 2 (line 2), column 'objects'",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_boxes_in_lines(name: str, tmp_path: Path) -> None:
    change, answer = LINES[name]
    good = {"image": "a.png", "objects": OBJECTS}
    other = {"image": "b.png", "objects": OBJECTS}
    lines = json.dumps(good) + "\n" + json.dumps({**good, **change}) + "\n"
    write(tmp_path, {**dict(images_for_boxes()), "train.jsonl": lines, "validation.jsonl": json.dumps(other) + "\n"})
    data = {"files": {"train": "train.jsonl", "validation": "validation.jsonl"}, "images": "images"}
    expect(answer, lambda: load(tmp_path, "detection", {}, data))


def voc(objects: str, name: str = "a.png") -> str:
    return f"<annotation><filename>{name}</filename>{objects}</annotation>"


def voc_object(left: object, top: object, right: object, bottom: object, name: str = "cat") -> str:
    corners = {"xmin": left, "ymin": top, "xmax": right, "ymax": bottom}
    box = "".join(f"<{key}>{value}</{key}>" for key, value in corners.items())
    return f"<object><name>{name}</name><bndbox>{box}</bndbox></object>"


VOC: dict[str, tuple[str, str]] = {
    "cut": ("<annotation><filename>", "x.xml"),
    "entities": ('<!DOCTYPE x [<!ENTITY a "b">]>' + voc(""), "document type is refused"),
    "no name": (voc(voc_object(1, 1, 5, 5, name="")), "an object has no name"),
    "corner that is no number": (voc(voc_object("x", 1, 5, 5)), "xmin is 'x', not a number"),
    "corners swapped": (voc(voc_object(5, 5, 1, 1)), "column 'objects'"),
    "no box": (voc("<object><name>cat</name></object>"), "xmin is ''"),
    "missing image": (voc(voc_object(1, 1, 5, 5), "none.png"), "there is no image 'none.png'"),
}


@pytest.mark.parametrize("name", VOC)
def test_voc(name: str, tmp_path: Path) -> None:
    content, answer = VOC[name]
    good = {f"{split}/a.xml": voc(voc_object(1, 1, 5, 5) + voc_object(1, 1, 4, 4, "dog")) for split in ("t", "v")}
    write(tmp_path, {**dict(images_for_boxes()), **good, "t/x.xml": content})
    data = {"files": {"train": "t", "validation": "v"}, "images": "images"}
    expect(answer, lambda: load(tmp_path, "detection", {}, data))


SQUAD: dict[str, tuple[object, str]] = {
    "no context": ([{"qas": [{"question": "q", "answers": []}]}], "'context' is missing"),
    "no question": ([{"context": "c", "qas": [{"answers": []}]}], "'question' is missing"),
    "answers without a start": (
        [{"context": "c", "qas": [{"question": "q", "answers": [{"text": "c"}]}]}],
        "article 0",
    ),
    "no questions": ([], "there are no questions in"),
    "text for a paragraph": (["x"], "article 0"),
}


@pytest.mark.parametrize("name", SQUAD)
def test_squad(name: str, tmp_path: Path) -> None:
    paragraphs, answer = SQUAD[name]
    content = json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    write(tmp_path, {"train.json": content, "validation.jsonl": json.dumps(ANSWER) + "\n"})
    data = {"files": {"train": "train.json", "validation": "validation.jsonl"}}
    expect(answer, lambda: load(tmp_path, "question_answering", {}, data))


def test_the_tables_are_long() -> None:
    tables = (TABLES, ROWS, IMAGES, FOLDERS, MAPS, BOXES, LINES, VOC, SQUAD)
    assert sum(map(len, tables)) >= 110
