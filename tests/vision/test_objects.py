"""Reading objects: every way of writing boxes, every way of getting them wrong, and images that must be turned."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as Pillow

from taskrecipe.errors import DataError
from taskrecipe.vision.objects import ObjectReader, check_categories, learn_categories

WIDTH, HEIGHT = 80, 60
NAMES = ["cat", "dog"]


def make_image(tag: int | None = None, size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    image = Pillow.new("RGB", size, (9, 90, 160))
    exif = image.getexif()
    if tag:
        exif[0x0112] = tag
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", exif=exif)
    return buffer.getvalue()


def data(*rows: dict[str, Any], category: Any = None, content: bytes | None = None) -> Dataset:
    """Rows of boxes and categories, each with an image."""
    objects = {"bbox": List(List(Value("float64"))), "category": List(category or ClassLabel(names=NAMES))}
    if rows and "iscrowd" in (rows[0]["objects"] or {}):
        objects["iscrowd"] = List(Value("bool"))
    sizes = {name: Value("int64") for name in ("width", "height") if rows and name in rows[0]}
    features = Features({"image": Image(), **sizes, "objects": objects})
    image = {"bytes": content or make_image(), "path": None}
    return Dataset.from_list([{"image": image, **row} for row in rows], features=features)


def boxes(*values: list[float], category: int = 0) -> dict[str, Any]:
    return {"objects": {"bbox": list(values), "category": [category] * len(values)}}


def read(rows: Dataset, written: Any = "coco", invalid: Any = "error") -> dict[str, list[Any]]:
    return ObjectReader(NAMES, written, invalid).read(rows, "train")


@pytest.mark.parametrize(
    ("written", "box"),
    [
        ("coco", [20, 15, 40, 30]),
        ("voc", [20, 15, 60, 45]),
        ("yolo", [0.5, 0.5, 0.5, 0.5]),
        ("albumentations", [0.25, 0.25, 0.75, 0.75]),
    ],
)
def test_every_way_of_writing_a_box_gives_the_same(written: str, box: list[float]) -> None:
    columns = read(data(boxes(box)), written)
    assert columns["boxes"][0].tolist() == [[20.0, 15.0, 60.0, 45.0]]
    assert columns["areas"][0].tolist() == [1200.0]
    assert (columns["width"], columns["height"]) == ([WIDTH], [HEIGHT])


@pytest.mark.parametrize(
    ("written", "box", "complaint"),
    [
        ("coco", [10, 10, -5, 20], "no width or no height"),
        ("coco", [10, 10, 0, 20], "no width or no height"),
        ("coco", [10, 10, float("nan"), 20], "not four finite numbers"),
        ("coco", [10, 10, float("inf"), 20], "not four finite numbers"),
        ("coco", [10, 10, None, 20], "not four finite numbers"),
        ("coco", [10, 10, 20], "not four finite numbers"),
        ("coco", [10, 10, 20, 20, 20], "not four finite numbers"),
        ("coco", [70, 10, 40, 20], "beyond its image of 80x60"),
        ("coco", [-30, 10, 20, 20], "beyond its image"),
        ("coco", [200, 200, 20, 20], "beyond its image"),
        ("coco", [0.1, 0.2, 0.5, 0.25], "is it 'yolo'"),
        ("voc", [0.1, 0.2, 0.5, 0.25], "is it 'yolo'"),
        ("voc", [40, 30, 20, 10], "no width or no height"),
        ("yolo", [20, 15, 40, 30], "is it 'coco' or 'voc'"),
        ("yolo", [0.9, 0.5, 0.5, 0.5], "beyond its image"),
    ],
)
def test_a_wrong_box_is_named_with_its_row(written: str, box: list[Any], complaint: str) -> None:
    rows = data(boxes([5, 5, 9, 9] if written in ("coco", "voc") else [0.5, 0.5, 0.1, 0.1]), boxes(box))
    with pytest.raises(DataError, match=complaint) as raised:
        read(rows, written)
    assert (raised.value.split, raised.value.row, raised.value.column) == ("train", 1, "objects")
    assert "invalid_boxes" in str(raised.value)


def test_repair_cuts_what_is_outside_leaves_out_what_is_nothing_and_counts_both() -> None:
    rows = data(boxes([70, 10, 40, 20], [10, 10, -5, 20], [200, 200, 20, 20], [1, 2, 3, float("nan")], [5, 5, 9, 9]))
    with pytest.warns(UserWarning, match="split 'train': 4 boxes were invalid"):
        columns = read(rows, invalid="repair")
    assert columns["boxes"][0].tolist() == [[70, 10, 80, 30], [5, 5, 14, 14]]
    assert columns["areas"][0].tolist() == [200, 81]


def test_rounding_over_the_edge_is_cut_without_a_word() -> None:
    columns = read(data(boxes([-0.6, 0, 81, 60.9])))
    assert columns["boxes"][0].tolist() == [[0, 0, 80, 60]]


@pytest.mark.parametrize("nothing", [{"bbox": [], "category": []}, None])
def test_an_image_without_boxes_is_a_row_like_others(nothing: Any) -> None:
    columns = read(data({"objects": nothing}))
    assert [len(columns[name][0]) for name in ("boxes", "labels", "areas", "crowds")] == [0] * 4


def test_thousands_of_boxes_are_read() -> None:
    assert len(read(data(boxes(*[[5, 5, 9, 9]] * 5000)))["labels"][0]) == 5000


def test_crowds_are_told_apart() -> None:
    objects = {"bbox": [[1, 1, 9, 9], [2, 2, 50, 50]], "category": [0, 1], "iscrowd": [False, True]}
    assert read(data({"objects": objects}))["crowds"][0].tolist() == [False, True]


def test_boxes_and_categories_must_be_equally_many() -> None:
    with pytest.raises(DataError, match="2 boxes, but 1 categories"):
        read(data({"objects": {"bbox": [[1, 1, 9, 9], [2, 2, 9, 9]], "category": [0]}}))


# Turned images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", range(1, 9))
@pytest.mark.parametrize("written", ["coco", "yolo"])
def test_boxes_turn_with_their_image(tag: int, written: str) -> None:
    """A white patch on black, which after turning must be found where its box is."""
    from taskrecipe.data.images import open_rgb

    pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    pixels[10:20, 50:70] = 255
    exif = Pillow.Exif()
    exif[0x0112] = tag
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, format="PNG", exif=exif)
    box = [50, 10, 20, 10] if written == "coco" else [60 / WIDTH, 15 / HEIGHT, 20 / WIDTH, 10 / HEIGHT]
    columns = read(data(boxes(box), content=buffer.getvalue()), written)
    upright = np.asarray(open_rgb(buffer.getvalue())[0])
    left, top, right, bottom = np.round(columns["boxes"][0][0]).astype(int)
    expected = np.zeros_like(upright)
    expected[top:bottom, left:right] = 255
    assert np.array_equal(upright, expected)
    assert (columns["width"][0], columns["height"][0]) == upright.shape[1::-1]


def test_boxes_for_the_upright_image_are_left_as_they_are() -> None:
    row = {**boxes([5, 50, 10, 20]), "width": HEIGHT, "height": WIDTH}
    assert read(data(row, content=make_image(6)))["boxes"][0].tolist() == [[5, 50, 15, 70]]


def test_annotations_for_another_size_are_refused() -> None:
    row = {**boxes([5, 5, 9, 9]), "width": 800, "height": 600}
    with pytest.raises(DataError, match="80x60 pixels, but its annotations are for 800x600"):
        read(data(row))
    with pytest.warns(UserWarning, match="1 images have another size"):
        assert read(data(row), invalid="repair")["boxes"][0].tolist() == [[5, 5, 14, 14]]


@pytest.mark.parametrize("content", [b"no image", make_image()[:400]])
def test_a_damaged_image_is_named_with_its_row(content: bytes) -> None:
    with pytest.raises(DataError) as raised:
        read(data(boxes([5, 5, 9, 9]), content=content))
    assert (raised.value.row, raised.value.column) == (0, "image")


# Classes ------------------------------------------------------------------------------------------------


def test_names_are_what_the_data_declares() -> None:
    rows = data(boxes([5, 5, 9, 9]))
    assert learn_categories(rows) == NAMES
    check_categories(rows, "validation", NAMES)


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        (Value("string"), ["dog", "bird", "dog"], ["bird", "dog"]),
        (Value("int64"), [10, 2, 10], ["2", "10"]),
    ],
)
def test_names_that_are_not_declared_are_found(kind: Any, values: list[Any], names: list[str]) -> None:
    rows = data(*(boxes([5, 5, 9, 9], category=value) for value in values), category=kind)
    assert learn_categories(rows) == names
    labels = ObjectReader(names, "coco", "error").read(rows, "train")["labels"]
    assert [int(label[0]) for label in labels] == [names.index(str(value)) for value in values]


def test_a_split_that_declares_an_unknown_class_is_refused() -> None:
    other = data(boxes([5, 5, 9, 9]), category=ClassLabel(names=["dog", "bird"]))
    with pytest.raises(DataError, match=r"the classes are .*'bird'.*those of 'train' are .*'cat'") as raised:
        check_categories(other, "validation", NAMES)
    assert (raised.value.split, raised.value.column) == ("validation", "objects")


def test_classes_are_numbered_by_name_whatever_the_order_in_a_split() -> None:
    other = data(boxes([5, 5, 9, 9]), category=ClassLabel(names=["dog", "cat"]))
    check_categories(other, "validation", NAMES)
    assert read(other)["labels"][0].tolist() == [NAMES.index("dog")]


def test_rows_without_objects_are_read_for_their_size() -> None:
    rows = data({"objects": None}, content=make_image(6)).remove_columns("objects")
    check_categories(rows, "validation", NAMES)
    assert read(rows) == {"width": [HEIGHT], "height": [WIDTH]}


def test_a_data_set_without_any_object_is_refused() -> None:
    rows = data({"objects": {"bbox": [], "category": []}}, category=Value("string"))
    with pytest.raises(DataError, match="nothing to learn"):
        learn_categories(rows)


@pytest.mark.parametrize("category", [None, "cow"])
def test_an_unknown_category_is_refused(category: Any) -> None:
    rows = data(boxes([5, 5, 9, 9], category=category), category=Value("string"))
    with pytest.raises(DataError, match="is unknown; there are cat, dog") as raised:
        read(rows)
    assert raised.value.row == 0


def test_objects_may_be_a_list_of_records() -> None:
    features = Features(
        {"image": Image(), "objects": List({"bbox": List(Value("float64")), "label": ClassLabel(names=NAMES)})}
    )
    records = [{"bbox": [5, 5, 9, 9], "label": 1}]
    rows = Dataset.from_list([{"image": {"bytes": make_image(), "path": None}, "objects": records}], features=features)
    assert learn_categories(rows) == NAMES
    assert read(rows)["labels"][0].tolist() == [1]


def test_a_column_without_categories_is_refused() -> None:
    features = Features({"image": Image(), "objects": {"bbox": List(List(Value("float64")))}})
    image = {"bytes": make_image(), "path": None}
    rows = Dataset.from_list([{"image": image, "objects": {"bbox": [[5, 5, 9, 9]]}}], features=features)
    with pytest.raises(DataError, match="none of category, category_id, label"):
        learn_categories(rows)
