"""Masks: what pycocotools makes of the same outlines, every way of getting them wrong, and images that are turned."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as Pillow
from PIL import ImageOps

from taskrecipe.data.images import Orientation, check_image
from taskrecipe.errors import DataError
from taskrecipe.vision.masks import OutlineReader, boxes_around, draw_outline, pack_masks, scale_masks, unpack_masks

WIDTH, HEIGHT = 30, 20
SIZE = (WIDTH, HEIGHT)
SQUARE = [[2.0, 3.0, 12.0, 3.0, 12.0, 13.0, 2.0, 13.0]]
RUNS = {"size": [HEIGHT, WIDTH], "counts": [45, 10, 545]}


def blobs(seed: int, count: int = 5) -> np.ndarray:
    """Masks of any form, from a few pixels to most of the image."""
    random = np.random.default_rng(seed)
    return random.random((count, HEIGHT, WIDTH)) < random.uniform(0.02, 0.9, (count, 1, 1))


def make_image(tag: int = 1) -> dict[str, Any]:
    exif = Pillow.Exif()
    exif[0x0112] = tag
    buffer = io.BytesIO()
    Pillow.new("RGB", SIZE).save(buffer, format="PNG", exif=exif)
    return {"bytes": buffer.getvalue(), "path": None}


def rows(*outlines: Any, feature: Any = None, tag: int = 1, **more: list[Any]) -> Dataset:
    """A row without objects, and one with an object for each outline."""
    objects = {"category": [0] * len(outlines), "segmentation": list(outlines), **more}
    features = {"category": ClassLabel(names=["cat", "dog"]), "segmentation": feature or List(List(Value("float64")))}
    if "iscrowd" in more:
        features["iscrowd"] = Value("bool")
    empty = {name: [] for name in objects}
    return Dataset.from_list(
        [{"image": make_image(tag), "objects": empty}, {"image": make_image(tag), "objects": objects}],
        features=Features({"image": Image(), "objects": {name: List(kind) for name, kind in features.items()}}),
    )


def run_lengths(counts: Any) -> Any:
    return {"size": List(Value("int64")), "counts": counts}


# Outlines --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools'
@pytest.mark.parametrize("seed", range(8))
def test_polygons_are_drawn_as_by_pycocotools(seed: int) -> None:
    coco = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(seed)
    polygons = [(random.random((corners, 2)) * SIZE).ravel().tolist() for corners in (3, 4, 7)]
    theirs = coco.decode(coco.merge(coco.frPyObjects(polygons, HEIGHT, WIDTH)))
    mask, beyond = draw_outline(polygons, SIZE)
    assert np.array_equal(mask, theirs.astype(bool))
    assert mask.any()
    assert not beyond
    assert np.array_equal(
        draw_outline(polygons[0], SIZE)[0], coco.decode(coco.frPyObjects(polygons[:1], HEIGHT, WIDTH))[..., 0]
    )


@pytest.mark.parametrize("seed", range(4))
def test_run_lengths_are_those_of_pycocotools(seed: int) -> None:
    coco = pytest.importorskip("pycocotools.mask")
    masks = blobs(seed)
    codes = [coco.encode(np.asfortranarray(mask.astype(np.uint8))) for mask in masks]
    assert pack_masks(masks) == [{"size": [HEIGHT, WIDTH], "counts": code["counts"].decode()} for code in codes]
    assert np.array_equal(unpack_masks(pack_masks(masks), SIZE), masks)
    for mask in masks:
        flat = mask.flatten(order="F")
        edges = np.flatnonzero(np.diff(np.concatenate([[False], flat, [False]])))
        counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
        assert np.array_equal(draw_outline({"size": [HEIGHT, WIDTH], "counts": counts}, SIZE)[0], mask)


def test_boxes_are_those_around_the_masks() -> None:
    masks = blobs(1)
    for mask, box in zip(masks, boxes_around(masks), strict=True):
        y, x = np.nonzero(mask)
        assert box.tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]
    assert boxes_around(masks[:0]).shape == (0, 4)


@pytest.mark.parametrize("tag", range(1, 9))
def test_masks_turn_as_images_do(tag: int) -> None:
    mask = blobs(2, 1)
    exif = Pillow.Exif()
    exif[0x0112] = tag
    buffer = io.BytesIO()
    Pillow.fromarray(mask[0]).save(buffer, format="PNG", exif=exif)
    turned = np.asarray(ImageOps.exif_transpose(Pillow.open(buffer)))
    assert np.array_equal(Orientation(tag, WIDTH, HEIGHT).turn_maps(mask)[0], turned)


def test_pixels_that_are_half_covered_belong_to_a_scaled_mask() -> None:
    mask = np.zeros((1, 8, 8), dtype=bool)
    mask[0, 2:6, :3] = True
    assert scale_masks(mask, (8, 8)).tolist() == mask.tolist()
    assert np.array_equal(scale_masks(mask.repeat(4, 1).repeat(4, 2), (8, 8)), mask)
    assert scale_masks(mask, (16, 16)).sum() == pytest.approx(4 * mask.sum(), abs=6)


# Objects ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [1, 6])
def test_objects_are_read_by_their_outlines(tag: int) -> None:
    columns = OutlineReader(["cat", "dog"]).read(rows(SQUARE, tag=tag, iscrowd=[True]), "train")
    size = Orientation(tag, WIDTH, HEIGHT).size
    assert (columns["width"], columns["height"]) == ([size[0]] * 2, [size[1]] * 2)
    assert [len(boxes) for boxes in columns["boxes"]] == [0, 1]
    mask = unpack_masks(columns["masks"][1], size)
    assert np.array_equal(mask, check_image(make_image(tag)).turn_maps(draw_outline(SQUARE, SIZE)[0][None]))
    assert columns["boxes"][1].tolist() == boxes_around(mask).tolist()
    assert columns["areas"][1].tolist() == [mask.sum()]
    assert columns["crowds"][1].tolist() == [True]


WRONG: dict[str, tuple[Any, Any, str]] = {
    "missing": (None, None, "is missing"),
    "no polygons": ([], None, "is missing"),
    "two corners": ([[1.0, 2.0, 3.0, 4.0]], None, "a polygon of 4 numbers; x and y of at least three corners"),
    "half a corner": ([[1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 5.0]], None, "a polygon of 7 numbers"),
    "not a number": ([[1.0, 2.0, 3.0, 4.0, float("nan"), 9.0]], None, "not finite"),
    "nothing for a number": ([[1.0, 2.0, 3.0, 4.0, None, 9.0]], None, "not finite"),
    "infinite": ([[1.0, 2.0, 3.0, 4.0, float("inf"), 9.0]], None, "not finite"),
    "no pixel": ([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]], None, "covers nothing"),
    "outside": ([[100.0, 90.0, 140.0, 90.0, 140.0, 95.0]], None, "covers nothing of its image of 30x20"),
    "far outside": ([[1.0, 2.0, 1e12, 4.0, 9.0, 9.0]], None, "beyond its image of 30x20"),
    "text": ("1 2 3", Value("string"), "neither polygons nor run lengths"),
    "another size": (
        {"size": [9, 9], "counts": [80, 1]},
        List(Value("int64")),
        "9x9 pixels, but .* has 30x20",
    ),
    "too few runs": ({"size": [HEIGHT, WIDTH], "counts": [5, 5]}, List(Value("int64")), "10 pixels, but .* has 600"),
    "negative runs": ({"size": [HEIGHT, WIDTH], "counts": [-5, 605]}, List(Value("int64")), "run lengths for"),
    "empty mask": ({"size": [HEIGHT, WIDTH], "counts": [600]}, List(Value("int64")), "covers nothing"),
    "no counts": ({"size": [HEIGHT, WIDTH], "counts": None}, List(Value("int64")), "its size and counts"),
    "damaged text": ({"size": [HEIGHT, WIDTH], "counts": "zz~"}, Value("string"), "run lengths for"),
}


def wrong(name: str) -> Dataset:
    outline, kind, _ = WRONG[name]
    return rows(outline, feature=run_lengths(kind) if isinstance(outline, dict) else kind)


@pytest.mark.parametrize("name", WRONG)
def test_an_outline_that_is_wrong_is_refused(name: str) -> None:
    with pytest.raises(
        DataError, match=rf"outline of object 0 .*({WRONG[name][2]}).*invalid_masks = .repair"
    ) as raised:
        OutlineReader(["cat", "dog"]).read(wrong(name), "train")
    assert (raised.value.split, raised.value.row, raised.value.column) == ("train", 1, "objects")


@pytest.mark.parametrize("name", WRONG)
def test_an_outline_that_is_wrong_is_left_out_or_cut_to_order(name: str) -> None:
    cut = name == "far outside"
    words = "outlines reached beyond their image, and were cut" if cut else "objects had no valid outline"
    with pytest.warns(UserWarning, match=f"split 'train': 1 {words}"):
        columns = OutlineReader(["cat", "dog"], invalid="repair").read(wrong(name), "train")
    assert len(columns["masks"][1]) == len(columns["labels"][1]) == cut


def test_rounding_may_carry_a_corner_over_the_edge() -> None:
    mask, beyond = draw_outline([[-0.6, -0.4, WIDTH + 0.7, 0.0, WIDTH, HEIGHT + 0.9, 0.0, HEIGHT]], SIZE)
    assert not beyond
    assert mask.mean() > 0.95


def test_objects_without_any_outline_are_refused() -> None:
    boxes = {"category": [1], "bbox": [[1.0, 2.0, 3.0, 4.0]]}
    with pytest.raises(
        DataError, match=r"row 0, column 'objects': objects have .*bbox.*none of segmentation"
    ) as raised:
        OutlineReader(["cat", "dog"]).read(Dataset.from_list([{"image": make_image(), "objects": boxes}]), "train")
    assert raised.value.split == "train"


def test_a_class_out_of_range_is_refused() -> None:
    objects = [{"category": [], "segmentation": []}, {"category": [7], "segmentation": [SQUARE]}]
    data = Dataset.from_dict({"image": [make_image()] * 2, "objects": objects})
    with pytest.raises(DataError, match="row 1, column 'objects': the category 7 is unknown; there are 0, 1"):
        OutlineReader(["0", "1"]).read(data.cast_column("image", Image()), "train")


def test_there_must_be_as_many_outlines_as_classes() -> None:
    data = Dataset.from_dict({"image": [make_image()], "objects": [{"category": [0, 1], "segmentation": [SQUARE]}]})
    with pytest.raises(DataError, match="there are 1 outlines, but 2 categories"):
        OutlineReader(["0", "1"]).read(data.cast_column("image", Image()), "train")
