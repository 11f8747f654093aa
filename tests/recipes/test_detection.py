"""Detection: boxes come back where they were, whatever happens to images on the way; and the promises of the loop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from tests.support.detectors import CONFIGS
from tests.support.loops import evaluated, gradients, interrupted, learn_and_check, trained, weights
from tests.support.visionruns import Ready, encoded, prepared, sample, vision_loop, vision_spec

from taskrecipe.data.load import load_data
from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed
from taskrecipe.vision.sample_images import SHAPE_NAMES, draw_images, make_object_rows


@pytest.fixture(scope="module")
def few() -> Ready:
    """22 images: two full updates and a short one, some images without boxes."""
    return prepared(vision_spec("detection"), rows=22)


def prepare(rows: Dataset, **task: Any) -> Ready:
    """The recipe with options of its own, on rows of its own."""
    return prepared(vision_spec("detection", task), {"train": rows, "validation": rows})


def one_box(
    pixels: np.ndarray, box: list[float], crowd: bool = False, image: dict[str, Any] | None = None
) -> dict[str, Any]:
    objects = {"bbox": [box], "category": [1], "iscrowd": [crowd], "area": [box[2] * box[3]]}
    return {"image": image or encoded(pixels), "objects": objects}


def rows_of(*rows: dict[str, Any]) -> Dataset:
    values = {"area": Value("float64"), "iscrowd": Value("bool"), "category": ClassLabel(names=list(SHAPE_NAMES))}
    objects = {name: List(value) for name, value in {"bbox": List(Value("float64")), **values}.items()}
    return Dataset.from_list(list(rows), features=Features({"image": Image(), "objects": objects}))


# Boxes there and back ----------------------------------------------------------------------------------


def found_again(ready: Ready) -> dict[str, float]:
    """The score of a detector that predicts, of each image as it is seen, exactly the boxes that are in it."""
    recipe, rows = ready.recipe, ready.rows["validation"]
    examples = [recipe.example(row, np.random.default_rng(0), training=False) for row in rows]
    batch = recipe.collate(examples)
    most = max(len(example["boxes"]) for example in examples)
    boxes, logits = torch.full((len(rows), most, 4), 0.5), torch.full((len(rows), most, len(SHAPE_NAMES)), -20.0)
    for i, example in enumerate(examples):
        boxes[i, : len(example["boxes"])] = torch.from_numpy(example["boxes"])
        for j, label in enumerate(example["classes"]):
            logits[i, j, label] = 20.0
    outputs = SimpleNamespace(logits=logits, pred_boxes=boxes)
    predictions = recipe.predict(outputs, batch)
    return recipe.score(predictions, rows)


@pytest.mark.parametrize("fit", ["model", "pad", "stretch"])
def test_boxes_come_back_where_they_were(fit: str) -> None:
    """Wide, tall and turned images, of sizes other than the model's."""
    rows = []
    for tag, (width, height) in enumerate([(90, 40), (30, 130), (64, 64), (200, 170), (17, 40), (61, 33)], 1):
        pixels = np.zeros((height, width, 3), dtype=np.uint8)
        box = [width * 0.5, height * 0.25, width * 0.25, height * 0.5]
        rows.append(one_box(pixels, box, image=encoded(pixels, exif=_turned(tag))))
    assert found_again(prepare(rows_of(*rows), fit=fit))["map"] == pytest.approx(1.0)


def _turned(tag: int) -> Any:
    from PIL import Image as Pillow

    exif = Pillow.Exif()
    exif[0x0112] = tag
    return exif


@pytest.mark.parametrize(("fit", "shape", "masked"), [("pad", (64, 64), 32), ("stretch", (64, 64), None)])
def test_images_get_square_whatever_their_shape(fit: str, shape: Any, masked: int | None) -> None:
    ready = prepare(rows_of(one_box(np.full((40, 80, 3), 255, np.uint8), [10, 10, 30, 20])), fit=fit)
    example = ready.recipe.example(ready.rows["train"][0], np.random.default_rng(0), training=False)
    assert example["pixel_values"].shape == (3, *shape)
    assert example["boxes"][0] == pytest.approx([25 / 80, 20 / 40, 30 / 80, 20 / 40])
    if masked is None:
        assert "pixel_mask" not in example
    else:
        assert example["pixel_mask"].sum() == masked * 64
        assert (example["pixel_values"][:, masked:] == 0).all()


def test_a_crowd_is_not_trained_on() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    ready = prepare(rows_of(one_box(pixels, [2, 2, 9, 9]), one_box(pixels, [2, 2, 50, 50], crowd=True)))
    seen = [ready.recipe.example(row, np.random.default_rng(0), True) for row in ready.rows["train"]]
    assert [len(example["boxes"]) for example in seen] == [1, 0]
    assert found_again(ready)["map"] == pytest.approx(1.0)


def test_only_training_images_are_varied(few: Ready) -> None:
    recipe, row = few.recipe, few.rows["train"][1]

    def seen(training: bool, seed: int) -> np.ndarray:
        return recipe.example(row, np.random.default_rng(seed), training)["pixel_values"]

    assert np.array_equal(seen(False, 1), seen(False, 2))
    assert len({seen(True, seed).tobytes() for seed in range(8)}) == 2  # mirrored or not
    assert np.array_equal(seen(True, 3), seen(True, 3))


def test_no_more_boxes_are_kept_than_count(few: Ready) -> None:
    outputs = SimpleNamespace(logits=torch.randn(2, 300, 3), pred_boxes=torch.rand(2, 300, 4))
    kept = few.recipe.predict(outputs, {"size": torch.tensor([[64, 64]] * 2)})
    assert [len(scores) for scores in kept["scores"]] == [100, 100]
    assert all((np.diff(scores) <= 0).all() for scores in kept["scores"])


# Answers and descriptions ------------------------------------------------------------------------------


def test_an_answer_names_what_was_found_the_best_first(few: Ready) -> None:
    logits = torch.tensor([[[-9.0, -9.0, 3.0], [4.0, -9.0, -9.0], [-9.0, -9.0, -4.0]]])
    boxes = torch.tensor([[[0.5, 0.5, 0.5, 0.5], [0.25, 0.5, 0.5, 1.0], [0.5, 0.5, 0.1, 0.1]]])
    outputs = SimpleNamespace(logits=logits, pred_boxes=boxes)
    predictions = few.recipe.predict(outputs, {"size": torch.tensor([[60, 80]])})
    answer = few.recipe.answer({name: values[0] for name, values in predictions.items()}, {})
    assert [found["label"] for found in answer] == ["circle", "triangle"]  # the third is too unlikely
    assert [found["score"] for found in answer] == pytest.approx(logits.flatten()[[3, 2]].sigmoid().tolist())
    assert [found["box"] for found in answer] == [[0.0, 0.0, 40.0, 60.0], [20.0, 15.0, 40.0, 30.0]]
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_a_described_box_is_on_the_pixels_that_it_names(fit: str) -> None:
    """A white patch on black must be where the box is drawn, on a wide image of another size."""
    pixels = np.zeros((60, 120, 3), np.uint8)
    pixels[20:40, 60:90] = 255
    ready = prepare(rows_of(one_box(pixels, [60, 20, 30, 20])), fit=fit)
    described = ready.recipe.describe(ready.recipe.example(ready.rows["train"][0], np.random.default_rng(0), False))
    (shape,) = described.shapes
    assert shape.label == SHAPE_NAMES[1]
    gray = np.asarray(described.image.convert("L")).astype(float)
    left, top, right, bottom = np.round(shape.box).astype(int)
    assert gray.shape == (64, 64)
    assert gray[top + 1 : bottom - 1, left + 1 : right - 1].min() > 200
    outside = gray[: 32 if fit == "pad" else 64].copy()  # padding has the color of the mean
    outside[top - 2 : bottom + 2, left - 2 : right + 2] = 0
    assert outside.max() < 50


def test_rows_without_objects_have_no_targets_but_a_size(few: Ready) -> None:
    bare = make_object_rows(draw_images(2, 40, (1,))).remove_columns(["objects", "width", "height"])
    few.recipe.check(bare, "validation")
    row = few.recipe.preprocess(bare, "validation")[0]
    example = few.recipe.example(row, np.random.default_rng(0), training=False)
    assert example.keys() == {"pixel_values", "size"}
    assert example["size"].tolist() == [40, 40]
    assert few.recipe.describe(example).shapes == []


# Images nobody vouches for ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        encoded(np.zeros((40, 40, 3), np.uint8), "CMYK", "JPEG"),
        encoded(np.zeros((40, 40, 3), np.uint8), "P"),
        encoded(np.zeros((40, 40, 3), np.uint8), "RGBA"),
        encoded(np.zeros((40, 40), np.uint16)),
        encoded(np.zeros((40, 40, 3), np.uint8), "L"),
    ],
    ids=["cmyk", "palette", "alpha", "16 bits", "gray"],
)
def test_images_of_every_kind_are_taken(image: dict[str, Any]) -> None:
    ready = prepare(rows_of(one_box(np.zeros(0), [2, 2, 9, 9], image=image)))
    example = ready.recipe.example(ready.rows["train"][0], np.random.default_rng(0), training=True)
    assert example["pixel_values"].shape == (3, 64, 64)


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        ({"bytes": b"", "path": None}, "0 bytes"),
        (
            {"bytes": encoded(np.zeros((99, 99, 3), np.uint8), kind="JPEG")["bytes"][:300], "path": None},
            "can't be read",
        ),
        ({"bytes": None, "path": "nowhere.png"}, "missing"),
        (encoded(np.zeros((1, 30_000, 3), np.uint8)), "30000x1 pixels"),
    ],
    ids=["empty", "truncated", "missing", "thin"],
)
def test_an_image_that_cannot_be_seen_is_refused_before_the_first_update(image, complaint) -> None:
    rows = rows_of(
        one_box(np.zeros((64, 64, 3), np.uint8), [2, 2, 9, 9]), one_box(np.zeros(0), [0, 0, 1, 1], image=image)
    )
    with pytest.raises(DataError, match=complaint) as raised:
        prepare(rows, fit="pad")
    assert (raised.value.split, raised.value.row, raised.value.column) == ("train", 1, "image")


def test_the_smallest_image_is_an_image() -> None:
    ready = prepare(rows_of(one_box(np.zeros((1, 1, 3), np.uint8), [0, 0, 1, 1])))
    assert found_again(ready)["map"] == pytest.approx(1.0)


# Models and classes ------------------------------------------------------------------------------------


def load_with(folder: Path, kind: str, spec: Any, labels: list[str] | None = None) -> tuple[Any, Any]:
    """The recipe and its model, from a configuration of `kind` in `folder`."""
    from transformers import AutoConfig

    recipe = installed().recipe("detection")(spec)
    splits, model = sample("detection")
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = AutoConfig.for_model(kind, **CONFIGS[kind])
    if labels:
        config.id2label, config.label2id = dict(enumerate(labels)), {name: i for i, name in enumerate(labels)}
    config.save_pretrained(folder)
    learn_and_check(recipe, splits)
    source = ModelSource(str(folder))
    recipe.processor = recipe.load_processor(source)
    return recipe, recipe.load_model(source)


def test_class_names_travel_with_the_model(few: Ready) -> None:
    model = vision_loop(few, vision_spec("detection")).state.module
    assert model.config.id2label == dict(enumerate(SHAPE_NAMES))
    assert model.config.label2id == {name: number for number, name in enumerate(SHAPE_NAMES)}


def test_a_model_that_knows_all_classes_keeps_its_numbering(tmp_path: Path) -> None:
    theirs = ["bird", "triangle", "circle", "square"]
    recipe, model = load_with(tmp_path, "detr", vision_spec("detection"), theirs)
    assert list(model.config.id2label.values()) == recipe.labels == theirs
    rows = recipe.preprocess(make_object_rows(draw_images(8, 64, (0,))), "train")
    raw = make_object_rows(draw_images(8, 64, (0,)))
    for ours, row in zip(rows, raw, strict=True):
        assert [theirs[label] for label in ours["labels"]] == [SHAPE_NAMES[c] for c in row["objects"]["category"]]


def test_a_model_whose_loss_is_not_exact_is_refused_before_data_is_read(tmp_path: Path) -> None:
    from transformers import AutoConfig

    recipe = installed().recipe("detection")(vision_spec("detection"))
    splits, model = sample("detection")
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    learn_and_check(recipe, splits)
    AutoConfig.for_model("d_fine").save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"'d_fine'.*deformable_detr"):
        recipe.load_processor(ModelSource(str(tmp_path)))


def test_batch_norm_is_frozen_or_else_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="freeze_batch_norm"):
        load_with(tmp_path, "rt_detr", vision_spec("detection", {"freeze_batch_norm": False}, train={"accumulate": 2}))
    recipe, model = load_with(tmp_path, "rt_detr", vision_spec("detection", train={"accumulate": 2}))
    norms = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
    rows = recipe.preprocess(make_object_rows(draw_images(4, 64, (0,))), "train")
    batch = recipe.collate([recipe.example(row, np.random.default_rng(0), True) for row in rows])
    recipe.forward(model.train(), batch)
    assert norms
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in norms.items())


@pytest.mark.parametrize("kind", ["yolos", "detr", "rt_detr"])
def test_other_architectures_train_and_are_measured(kind: str, tmp_path: Path) -> None:
    recipe, model = load_with(tmp_path, kind, vision_spec("detection"))
    rows = recipe.preprocess(make_object_rows(draw_images(6, 64, (0,))), "validation")
    batch = recipe.collate([recipe.example(row, np.random.default_rng(0), False) for row in rows])
    terms = recipe.loss(recipe.forward(model.train(), batch), batch, training=True)
    sum(terms.values()).backward()
    assert terms.keys() == recipe.loss_counts(batch).keys()
    with torch.no_grad():
        numbers = recipe.score(recipe.predict(recipe.forward(model.eval(), batch), batch), rows)
    assert recipe.metrics().keys() <= numbers.keys()


# Files ---------------------------------------------------------------------------------------------------


def test_coco_files_are_read_checked_and_trained_on(tmp_path: Path) -> None:
    drawn = draw_images(6, 64, (5,))
    (tmp_path / "images").mkdir()
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": 7 - number, "name": name} for number, name in enumerate(SHAPE_NAMES)]
    for number, image in enumerate(drawn):
        (tmp_path / "images" / f"{number}.png").write_bytes(image.png())
        content["images"].append({"id": 10 + number, "file_name": f"{number}.png", "width": 64, "height": 64})
        for box, label in zip(image.boxes.tolist(), image.classes.tolist(), strict=True):
            content["annotations"].append(
                {"id": len(content["annotations"]), "image_id": 10 + number, "category_id": 7 - label, "bbox": box}
            )
    (tmp_path / "train.json").write_text(json.dumps(content))
    files = {"train": str(tmp_path / "train.json"), "validation": str(tmp_path / "train.json")}
    data = {"format": "coco", "files": files, "images": str(tmp_path / "images"), "sample": False}
    spec = vision_spec("detection", data=data, model={"name": str(sample("detection")[1])})
    recipe = installed().recipe("detection")(spec)
    loaded = load_data(spec, recipe, tmp_path)
    recipe.processor = recipe.load_processor(loaded.source)
    rows = recipe.preprocess(loaded.splits["train"], "train")
    assert sorted(recipe.labels) == sorted(SHAPE_NAMES)
    for row, image in zip(rows, drawn, strict=True):
        assert [recipe.labels[label] for label in row["labels"]] == [SHAPE_NAMES[kind] for kind in image.classes]
        corners = np.array(row["boxes"]).reshape(-1, 4)
        assert np.allclose(corners[:, 2:] - corners[:, :2], image.boxes[:, 2:])


# Promises ------------------------------------------------------------------------------------------------


def test_accumulation_gives_the_gradients_of_one_batch(few: Ready) -> None:
    counts = [len(labels) for labels in few.rows["train"]["labels"]]
    assert 0 in counts
    assert len(set(counts)) > 2

    def taken(accumulate: int, update: int) -> list[torch.Tensor]:
        spec = vision_spec("detection", train={"accumulate": accumulate})
        return gradients(vision_loop(few, spec, torch.float64), update)

    for update in (0, 2):
        whole = taken(1, update)
        largest = max(float(g.abs().max()) for g in whole)
        for accumulate in (2, 4, 8):
            parts = taken(accumulate, update)
            difference = max(float((a - b).abs().max()) for a, b in zip(whole, parts, strict=True))
            assert difference / max(largest, 1.0) < 1e-12


def test_numbers_do_not_depend_on_the_evaluation_batch_size(few: Ready) -> None:
    reference, *others = (
        evaluated(vision_loop(few, vision_spec("detection", evaluate={"batch_size": size}), torch.float64))
        for size in (64, 1, 3, 8)
    )
    for numbers in others:
        assert numbers == pytest.approx(reference, rel=1e-9, nan_ok=True)
    assert [*few.recipe.metrics(), *(f"map/{name}" for name in SHAPE_NAMES), "loss"] == list(reference)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_spec_gives_the_same_bits_even_if_interrupted(few: Ready, workers: int) -> None:
    augment = {"flip": 0.5, "scale": 0.3, "crop": 0.5, "color": 0.2}

    def loop(workers: int) -> Any:
        spec = vision_spec("detection", {"augment": augment}, train={"accumulate": 2}, data={"workers": workers})
        return vision_loop(few, spec)

    first = loop(0)
    list(first.run())
    again = interrupted(loop(workers), loop(workers), after=2)
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(first).items())


@pytest.mark.chaos  # the conformance kit trains on the sample more briefly
def test_the_sample_is_learned() -> None:
    """Far shorter than the real sample run, which ends at a map_50 of about 0.88."""
    spec = vision_spec("detection", train={"epochs": 4, "batch_size": 16})
    loop = vision_loop(prepared(spec), spec)
    assert evaluated(loop)["map_50"] < 0.05
    assert trained(loop)["map_50"] > 0.3
