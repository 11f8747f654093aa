"""Image classification and semantic segmentation: what they measure, answer and show, and what they refuse."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Pillow
from tests.support.loops import learn_and_check
from tests.support.textruns import text_spec

from taskrecipe.contrib.image_classification import ImageClassification
from taskrecipe.contrib.semantic_segmentation import IGNORED, SemanticSegmentation
from taskrecipe.data.images import ORIENTATION_TAG, open_rgb
from taskrecipe.description import DescribedImage
from taskrecipe.errors import DataError
from taskrecipe.testing import conformance
from taskrecipe.vision import unpack_masks

test_image_classification = conformance("image_classification")
test_semantic_segmentation = conformance("semantic_segmentation", labels=["ground", "circle", "square", "triangle"])


def png(pixels: np.ndarray, **options: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, format="PNG", **options)
    return {"bytes": buffer.getvalue(), "path": None}


def segmentation_rows(*pairs: tuple[dict[str, Any], dict[str, Any] | None]) -> Dataset:
    rows = {"image": [image for image, _ in pairs], "annotation": [annotation for _, annotation in pairs]}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "annotation": Image()}))


def maps(*annotations: np.ndarray) -> Dataset:
    """Rows with these maps and black images of their size."""
    return segmentation_rows(*((png(np.zeros((*each.shape, 3), dtype=np.uint8)), png(each)) for each in annotations))


class FixedSize:
    """An image processor that resizes to `size` pixels, and nothing else."""

    do_normalize, do_rescale = False, False

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, image: Pillow.Image) -> dict[str, Any]:
        pixels = np.asarray(image.resize(self.size, Pillow.Resampling.NEAREST))
        return {"pixel_values": [pixels.transpose(2, 0, 1)]}


def segmentation(size: tuple[int, int] = (4, 4), **task: object) -> SemanticSegmentation:
    recipe = SemanticSegmentation(text_spec("semantic_segmentation", {"labels": ["a", "b", "c"], **task}))
    recipe.labels, recipe.processor = ["a", "b", "c"], FixedSize(size)
    return recipe


def predict_map(recipe: SemanticSegmentation, classes: np.ndarray, scale: int = 1) -> bytes:
    """The prediction of a model that is sure of `classes`, on an image that is `scale` times as large."""
    logits = torch.nn.functional.one_hot(torch.tensor(classes, dtype=torch.int64), 3).permute(2, 0, 1)[None].float()
    height, width = classes.shape
    batch = {"pixel_values": torch.zeros(1, 3, height * scale, width * scale)}
    (encoded,) = recipe.predict(SimpleNamespace(logits=logits), batch)["map"]
    return encoded


def classifier(labels: list[str]) -> ImageClassification:
    recipe = ImageClassification(text_spec("image_classification"))
    recipe.labels, recipe.processor = labels, FixedSize((8, 8))
    return recipe


# Semantic segmentation -----------------------------------------------------------------------------------


def test_overlap_as_computed_by_hand() -> None:
    recipe = segmentation()
    right = [np.array([[0, 0, 0], [0, 255, 1]], dtype=np.uint8), np.array([[1, 255, 255]], dtype=np.uint8)]
    predicted = [np.array([[0, 0, 0], [1, 2, 1]]), np.array([[1, 0, 2]])]
    rows = recipe.preprocess(maps(*right), "validation")
    score = recipe.score({"map": [predict_map(recipe, each) for each in predicted]}, rows)
    assert score["iou_a"] == pytest.approx(3 / 4)
    assert score["iou_b"] == pytest.approx(2 / 3)
    assert score["mean_iou"] == pytest.approx((3 / 4 + 2 / 3) / 2)  # c doesn't occur where a class is known
    assert score["pixel_accuracy"] == pytest.approx(5 / 6)


def test_predictions_are_scored_at_the_size_that_the_model_sees() -> None:
    recipe = segmentation(size=(8, 4))
    right = np.random.default_rng(0).integers(0, 3, (50, 60)).astype(np.uint8)
    rows = recipe.preprocess(maps(right), "validation")
    seen = recipe.example(rows[0], np.random.default_rng(0), training=False)["labels"]
    assert seen.shape == (4, 8)
    assert recipe.score({"map": [predict_map(recipe, seen)]}, rows)["pixel_accuracy"] == 1.0
    wrong = seen.copy()
    wrong[0, 0] = (wrong[0, 0] + 1) % 3
    assert recipe.score({"map": [predict_map(recipe, wrong)]}, rows)["pixel_accuracy"] == pytest.approx(31 / 32)


def test_a_predicted_map_has_the_size_of_the_image_and_is_small() -> None:
    recipe = segmentation()
    encoded = predict_map(recipe, np.array([[0, 1], [2, 2]]), scale=64)
    decoded = np.asarray(Pillow.open(io.BytesIO(encoded)))
    assert (decoded.shape, decoded.dtype) == ((128, 128), np.uint8)
    assert decoded[::127, ::127].tolist() == [[0, 1], [2, 2]]
    assert len(encoded) < decoded.size / 10


def test_an_answer_has_the_share_and_the_mask_of_each_class() -> None:
    recipe = segmentation()
    row = {"image": {"bytes": encode(np.zeros((2, 2, 3), dtype=np.uint8)), "path": None}}
    prediction = {"map": predict_map(recipe, np.array([[0, 2], [2, 2]]))}
    answer = recipe.answer(prediction, row)
    assert answer["classes"] == {"a": 0.25, "c": 0.75}
    masks = unpack_masks(list(answer["masks"].values()), (2, 2))
    assert masks.tolist() == [[[True, False], [False, False]], [[False, True], [True, True]]]
    images = recipe.answer_images(prediction, row)
    assert np.asarray(images["map"]).tolist() == [[0, 2], [2, 2]]
    assert images["overlay"].size == (2, 2)


def encode(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def test_a_described_map_has_a_mask_for_each_class_that_occurs() -> None:
    recipe = segmentation(size=(2, 2))
    (row,) = recipe.preprocess(maps(np.array([[0, 255], [2, 2]], dtype=np.uint8)), "train")
    described = recipe.describe(recipe.example(row, np.random.default_rng(0), training=False))
    assert isinstance(described, DescribedImage)
    assert described.image.size == (2, 2)
    assert {shape.label: shape.mask.tolist() for shape in described.shapes} == {
        "a": [[True, False], [False, False]],
        "c": [[False, False], [True, True]],
    }
    del row["annotation"]
    assert recipe.describe(recipe.example(row, np.random.default_rng(0), training=False)).shapes == []


def test_pixels_that_are_left_out() -> None:
    classes = png(np.array([[0, 1], [255, 2]], dtype=np.uint8))
    assert segmentation()._read_classes(classes).tolist() == [[0, 1], [-1, 2]]
    assert segmentation(reduce_labels=True)._read_classes(classes).tolist() == [[-1, 0], [-1, 1]]
    assert segmentation(ignore_index=1)._read_classes(classes).tolist() == [[0, -1], [255, 2]]
    (row,) = segmentation().preprocess(segmentation_rows((png(np.zeros((2, 2, 3), np.uint8)), classes)), "train")
    example = segmentation(size=(2, 2)).example(row, np.random.default_rng(0), training=False)
    assert example["labels"].tolist() == [[0, 1], [IGNORED, 2]]


@pytest.mark.parametrize(
    ("tag", "stored"),
    [*((tag, True) for tag in range(1, 9)), *((tag, False) for tag in range(5, 9))],  # shapes show the upright ones
)
def test_maps_turn_with_their_image(tag: int, stored: bool) -> None:
    exif = Pillow.Exif()
    exif[ORIENTATION_TAG] = tag
    pixels = np.random.default_rng(0).integers(0, 2, (2, 3)).astype(np.uint8)
    image = png(np.repeat(pixels[..., None] * 255, 3, axis=-1), exif=exif.tobytes())
    upright = np.asarray(open_rgb(image)[0])[..., 0] // 255
    rows = segmentation_rows((image, png(pixels if stored else upright)))
    recipe = segmentation(size=(upright.shape[1], upright.shape[0]))
    learn_and_check(recipe, {"train": rows})
    rows = recipe.preprocess(rows, "train")
    assert recipe.example(rows[0], np.random.default_rng(0), training=False)["labels"].tolist() == upright.tolist()
    assert recipe.score({"map": [predict_map(recipe, upright)]}, rows)["pixel_accuracy"] == 1.0


def test_classes_are_those_of_the_training_maps() -> None:
    recipe = segmentation(labels=None)
    low, high = np.array([[0, 255, 2]], dtype=np.uint8), np.array([[3]], dtype=np.uint8)
    learn_and_check(recipe, {"train": maps(low), "validation": maps(low)})
    assert recipe.labels == ["0", "1", "2"]
    message = "split 'validation', row 1, .*class 3 is not among the classes of the training rows, 0 to 2"
    with pytest.raises(DataError, match=message):
        recipe.check(maps(low, high), "validation")


@pytest.mark.parametrize("number", [0, 255])
def test_training_maps_need_classes_to_tell_apart(number: int) -> None:
    recipe = segmentation(labels=None, ignore_index=7)
    with pytest.raises(DataError, match=f"column 'annotation': the highest class of the maps is {number};") as caught:
        recipe.learn(maps(np.full((2, 2), number, dtype=np.uint8)))
    assert caught.value.split == "train"


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (png(np.full((4, 4), 7, dtype=np.uint8)), "class 7 has no name; .task..labels has 3"),
        (png(np.zeros((4, 4, 3), dtype=np.uint8)), "one class number for each pixel, but its mode is RGB"),
        (png(np.zeros((5, 7), dtype=np.uint8)), "the map has 7×5 pixels, but its image has 4×4"),
        ({"bytes": b"no image", "path": None}, "is damaged, or not one of PNG, BMP, TIFF"),
        (None, "there is no map"),
    ],
    ids=["unknown class", "colors", "another size", "damaged", "missing"],
)
def test_maps_that_cannot_be_trained_on_are_named(annotation: dict[str, Any] | None, message: str) -> None:
    image, good = png(np.zeros((4, 4, 3), dtype=np.uint8)), png(np.zeros((4, 4), dtype=np.uint8))
    rows = segmentation_rows((image, good), (image, good), (image, annotation))
    with pytest.raises(DataError, match=f"split 'train', row 2, column 'annotation': .*{message}"):
        segmentation().check(rows, "train")


def test_class_255_is_not_taken_for_a_pixel_that_is_left_out() -> None:
    with pytest.raises(DataError, match="class 255 has no name"):
        segmentation(ignore_index=0).check(maps(np.array([[0, 255]], dtype=np.uint8)), "train")


# Image classification ------------------------------------------------------------------------------------


def test_the_order_of_classes_gives_accuracy_and_top_5() -> None:
    recipe = classifier([str(number) for number in range(12)])
    logits = -torch.arange(12.0).repeat(4, 1)  # the likeliest class is 0, the next one 1, and so on
    predictions = {name: value.numpy() for name, value in recipe.predict(SimpleNamespace(logits=logits), {}).items()}
    rows = Dataset.from_dict({"labels": [0, 0, 4, 5]})
    assert recipe.score(predictions, rows) == {"accuracy": 0.5, "top_5": 0.75}


def test_an_answer_has_the_ten_likeliest_classes() -> None:
    for count in (3, 12):
        recipe = classifier([f"class {number}" for number in range(count)])
        logits = torch.arange(float(count))[None]
        predictions = recipe.predict(SimpleNamespace(logits=logits), {})
        answer = recipe.answer({name: values[0].numpy() for name, values in predictions.items()}, {})
        expected = logits.softmax(-1)[0]
        named = {f"class {n}": pytest.approx(float(expected[n])) for n in reversed(range(count))}
        assert answer["label"] == f"class {count - 1}"
        assert answer["probabilities"] == dict(list(named.items())[:10])
        assert list(answer["probabilities"]) == list(named)[:10]


def test_a_described_image_has_its_label() -> None:
    recipe = classifier(["cat", "dog"])
    example = {"pixel_values": np.full((3, 8, 8), 9), "labels": 1}
    described = recipe.describe(example)
    assert described.facts == {"label": "dog"}
    assert described.image.getpixel((0, 0)) == (9, 9, 9)
    del example["labels"]
    assert recipe.describe(example).facts == {}


def test_a_class_that_training_has_not_seen_is_named() -> None:
    features = Features({"image": Image(), "label": Value("string")})
    image = png(np.zeros((4, 4, 3), dtype=np.uint8))
    train, other = (
        Dataset.from_dict({"image": [image] * 2, "label": labels}, features=features)
        for labels in (["cat", "dog"], ["cat", "cow"])
    )
    with pytest.raises(DataError, match=r"split 'validation', row 1, column 'label': 'cow' is not among"):
        learn_and_check(classifier([]), {"train": train, "validation": other})


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    rows = Dataset.from_dict({"image": [str(tmp_path / "broken.png")], "label": [0]})
    rows = rows.cast_column("image", Image()).cast_column("label", ClassLabel(names=["a", "b"]))
    for bare in (rows, rows.remove_columns("label")):
        with pytest.raises(DataError, match=r"split 'train', row 0, column 'image': .*broken\.png"):
            classifier(["a", "b"]).check(bare, "train")
