"""Image classification and semantic segmentation: what they measure, and what they refuse."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, Image
from PIL import Image as Pictures
from textruns import text_spec

from taskrecipe.contrib.image_classification import ImageClassification
from taskrecipe.contrib.semantic_segmentation import SemanticSegmentation
from taskrecipe.core.errors import DataError
from taskrecipe.core.testing import conformance

test_image_classification = conformance("image_classification")
test_semantic_segmentation = conformance("semantic_segmentation", labels=["ground", "circle", "square", "triangle"])


def png(pixels: np.ndarray) -> dict[str, object]:
    buffer = io.BytesIO()
    Pictures.fromarray(pixels).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def maps(*annotations: np.ndarray) -> Dataset:
    pictures = [png(np.zeros((*annotation.shape, 3), dtype=np.uint8)) for annotation in annotations]
    rows = {"image": pictures, "annotation": [png(annotation) for annotation in annotations]}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "annotation": Image()}))


def segmentation(**task: object) -> SemanticSegmentation:
    recipe = SemanticSegmentation(text_spec("semantic_segmentation", {"labels": ["a", "b", "c"], **task}))
    recipe.labels = ["a", "b", "c"]
    return recipe


def test_overlap_as_computed_by_hand() -> None:
    confusion = np.array([[3, 1, 0], [0, 2, 0], [0, 0, 0]])  # rows: what is right; columns: what is predicted
    score = segmentation().score({"confusion": confusion}, None)
    assert score["iou_a"] == pytest.approx(3 / 4)
    assert score["iou_b"] == pytest.approx(2 / 3)
    assert score["mean_iou"] == pytest.approx((3 / 4 + 2 / 3) / 2)  # c doesn't occur
    assert score["pixel_accuracy"] == pytest.approx(5 / 6)


def test_ranks_give_accuracy_and_top_5() -> None:
    recipe = ImageClassification(text_spec("image_classification"))
    score = recipe.score({"rank": np.array([0, 0, 4, 5])}, None)
    assert score == {"accuracy": 0.5, "top_5": 0.75}


def test_pixels_that_are_left_out() -> None:
    classes = np.array([[0, 1], [255, 2]], dtype=np.uint8)
    assert segmentation()._map(png(classes)).tolist() == [[0, 1], [255, 2]]
    assert segmentation(reduce_labels=True)._map(png(classes)).tolist() == [[255, 0], [255, 1]]
    assert segmentation(ignore_index=1)._map(png(classes)).tolist() == [[0, 255], [255, 2]]


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (np.full((4, 4), 7, dtype=np.uint8), "class 7 has no name"),
        (np.zeros((4, 4, 3), dtype=np.uint8), "one number a pixel"),
    ],
    ids=["unknown class", "colours"],
)
def test_maps_that_cannot_be_trained_on_are_named(annotation: np.ndarray, message: str) -> None:
    good = np.zeros((4, 4), dtype=np.uint8)
    rows = maps(good, good)
    bad = Dataset.from_list([*rows, {"image": rows[0]["image"], "annotation": png(annotation)}], features=rows.features)
    with pytest.raises(DataError, match=f"split 'train', row 2, column 'annotation': .*{message}"):
        segmentation().check({"train": bad})


def test_a_map_of_another_size_is_named() -> None:
    rows = maps(np.zeros((4, 4), dtype=np.uint8))
    other = [{"image": rows[0]["image"], "annotation": png(np.zeros((5, 7), dtype=np.uint8))}]
    with pytest.raises(DataError, match="the map is 7×5 pixels, its picture 4×4"):
        segmentation().check({"train": Dataset.from_list(other, features=rows.features)})


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    rows = Dataset.from_dict({"image": [str(tmp_path / "broken.png")], "label": [0]}).cast_column("image", Image())
    with pytest.raises(DataError, match="split 'train', row 0, column 'image'"):
        ImageClassification(text_spec("image_classification")).check({"train": rows})
