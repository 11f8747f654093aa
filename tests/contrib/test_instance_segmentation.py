"""Instance segmentation: masks come back where they were, whatever happens to images; and the loop's promises."""

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
from tests.support.loops import evaluated, interrupted, learn_and_check, weights
from tests.support.segmenters import CONFIGS
from tests.support.visionruns import Ready, encoded, prepared, sample, vision_loop, vision_spec

from taskrecipe.data.load import load_data
from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed
from taskrecipe.testing import conformance
from taskrecipe.vision.masks import pack_masks, unpack_masks
from taskrecipe.vision.sample_images import SHAPE_NAMES, draw_images, make_object_rows

test_it_conforms = conformance("instance_segmentation")

RUNS = {"size": List(Value("int64")), "counts": Value("string")}


@pytest.fixture(scope="module")
def few() -> Ready:
    """22 images: two full updates and a short one, some images without objects."""
    return prepared(vision_spec("instance_segmentation"), rows=22)


def prepare(rows: Dataset, **task: Any) -> Ready:
    """The recipe with options of its own, on rows of its own."""
    return prepared(vision_spec("instance_segmentation", task), {"train": rows, "validation": rows})


def row_of(*masks: np.ndarray, crowd: bool = False, **options: Any) -> dict[str, Any]:
    """An image that is white where its masks are."""
    pixels = np.stack([np.any(masks, axis=0).astype(np.uint8) * 255] * 3, axis=-1)
    objects = {
        "category": [1] * len(masks),
        "iscrowd": [crowd] * len(masks),
        "segmentation": pack_masks(np.array(masks)),
    }
    return {"image": encoded(pixels, **options), "objects": objects}


def rows_of(*rows: dict[str, Any]) -> Dataset:
    objects = {"category": ClassLabel(names=list(SHAPE_NAMES)), "iscrowd": Value("bool"), "segmentation": RUNS}
    fields = {name: List(kind) for name, kind in objects.items()}
    return Dataset.from_list(list(rows), features=Features({"image": Image(), "objects": fields}))


def rectangle(width: int, height: int) -> np.ndarray:
    """A mask off the middle, so that no turn leaves it where it was."""
    mask = np.zeros((height, width), dtype=bool)
    mask[height // 4 : height // 4 * 3, width // 2 : width // 8 * 7] = True
    return mask


# Masks there and back -----------------------------------------------------------------------------------


def found_again(ready: Ready) -> dict[str, float]:
    """The score of a model that predicts, of each image as it is seen, exactly the masks that are in it."""
    recipe, rows = ready.recipe, ready.rows["validation"]
    batch = recipe.collate([recipe.example(row, np.random.default_rng(0), training=False) for row in rows])
    known = batch["classes"] >= 0
    classes = torch.full((*known.shape, len(SHAPE_NAMES) + 1), -20.0)
    classes[..., -1] = 0.0
    classes[known, batch["classes"][known]] = 20.0
    outputs = SimpleNamespace(class_queries_logits=classes, masks_queries_logits=batch["masks"] * 40.0 - 20.0)
    return recipe.score(recipe.predict(outputs, batch), rows)


@pytest.mark.parametrize("fit", ["model", "pad", "stretch"])
def test_masks_come_back_where_they_were(fit: str) -> None:
    """Wide, tall and turned images, of sizes other than the model's."""
    from PIL import Image as Pillow

    rows = []
    for tag, size in enumerate([(90, 40), (40, 130), (64, 64), (200, 170), (48, 40), (61, 40), (44, 90), (80, 60)], 1):
        exif = Pillow.Exif()
        exif[0x0112] = tag
        rows.append(row_of(rectangle(*size), exif=exif))
    assert found_again(prepare(rows_of(*rows), fit=fit, image_size=200))["map"] == pytest.approx(1.0)


def test_scores_and_masks_are_those_of_transformers() -> None:
    """At 384 pixels, where its post-processing scales nothing."""
    ready = prepare(rows_of(row_of(rectangle(384, 384))), image_size=384)
    recipe, random = ready.recipe, torch.Generator().manual_seed(0)
    coarse = torch.randn(1, 5, 6, 6, generator=random) * 3
    outputs = SimpleNamespace(
        class_queries_logits=torch.randn(1, 5, 4, generator=random),
        masks_queries_logits=torch.nn.functional.interpolate(coarse, size=(384, 384), mode="bilinear"),
    )
    batch = recipe.collate([recipe.example(row, np.random.default_rng(0), False) for row in ready.rows["validation"]])
    ours = recipe.predict(outputs, batch)
    (theirs,) = recipe.processor.post_process_instance_segmentation(
        outputs, threshold=0.0, target_sizes=[(384, 384)], return_binary_maps=True
    )
    found = {
        (label, round(float(score), 5)): mask
        for label, score, mask in zip(
            ours["labels"][0].tolist(), ours["scores"][0], unpack_masks(ours["shapes"][0], (384, 384)), strict=True
        )
    }
    assert len(found) == 5 * 3
    assert len(theirs["segments_info"]) == 5
    for segment, mask in zip(theirs["segments_info"], theirs["segmentation"], strict=True):
        assert np.array_equal(found[segment["label_id"], round(segment["score"], 5)], mask.numpy() > 0)


def test_no_more_masks_are_kept_than_count(few: Ready) -> None:
    outputs = SimpleNamespace(
        class_queries_logits=torch.randn(1, 60, 4), masks_queries_logits=torch.randn(1, 60, 16, 16)
    )
    sizes = {"seen": torch.tensor([[64, 64]]), "size": torch.tensor([[50, 70]])}
    batch = {"pixel_values": torch.zeros(1, 3, 64, 64), **sizes}
    kept = few.recipe.predict(outputs, batch)
    assert len(kept["scores"][0]) == len(kept["shapes"][0]) == 100
    assert (np.diff(kept["scores"][0]) <= 0).all()
    assert kept["shapes"][0][0]["size"] == [50, 70]


@pytest.mark.parametrize("augment", [{"flip": 1.0}, {"scale": 0.4}, {"crop": 1.0}, {"color": 0.3}], ids=str)
def test_masks_follow_the_pixels_of_varied_images(augment: dict[str, float]) -> None:
    drawn = draw_images(12, 64, (3,))
    rows = [row_of(*image.masks) for image in drawn if len(image.masks)]
    ready = prepare(rows_of(*rows), augment={"flip": 0.0, **augment})
    changed = 0
    for row in ready.rows["train"]:
        plain = ready.recipe.example(row, np.random.default_rng(1), training=False)
        seen = ready.recipe.example(row, np.random.default_rng(1), training=True)
        white = seen["pixel_values"][0] > 0.3  # white is 2.2, black -2.1, and gray beyond the image 0.06
        covered = seen["masks"].any(0) if len(seen["masks"]) else np.zeros_like(white)
        if len(seen["masks"]) == len(plain["masks"]) and "color" not in augment:
            assert (white & covered).sum() / (white | covered).sum() > 0.9
        changed += not np.array_equal(seen["masks"], plain["masks"])
    assert (changed == 0) == ("color" in augment)


def test_only_training_images_are_varied(few: Ready) -> None:
    recipe, row = few.recipe, few.rows["train"][0]
    assert len(row["labels"])

    def seen(training: bool, seed: int) -> bytes:
        return recipe.example(row, np.random.default_rng(seed), training)["masks"].tobytes()

    assert seen(False, 1) == seen(False, 2)
    assert len({seen(True, seed) for seed in range(8)}) == 2  # mirrored or not
    assert seen(True, 3) == seen(True, 3)


def test_what_vanishes_when_scaled_is_not_trained_on() -> None:
    speck = np.zeros((640, 640), dtype=bool)
    speck[300:302, 300:302] = True
    ready = prepare(rows_of(row_of(rectangle(640, 640), speck)))
    assert len(ready.rows["train"][0]["labels"]) == 2
    assert len(ready.recipe.example(ready.rows["train"][0], np.random.default_rng(0), False)["masks"]) == 1


def test_a_crowd_is_not_trained_on_and_neither_found_nor_missed() -> None:
    there = rectangle(64, 64)
    ready = prepare(rows_of(row_of(there), row_of(there[:, ::-1], crowd=True)))
    seen = [ready.recipe.example(row, np.random.default_rng(0), True) for row in ready.rows["train"]]
    assert [len(example["masks"]) for example in seen] == [1, 0]
    assert found_again(ready)["map"] == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools'
def test_the_score_is_the_one_of_pycocotools() -> None:
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    random = np.random.default_rng(0)
    rows = make_object_rows(draw_images(24, 64, (9,)))
    crowded = [{**row["objects"], "iscrowd": [random.random() < 0.2 for _ in row["objects"]["bbox"]]} for row in rows]
    ready = prepare(rows.remove_columns("objects").add_column("objects", crowded, feature=rows.features["objects"]))
    truth = ready.rows["validation"]
    found: dict[str, list[Any]] = {"shapes": [], "labels": [], "scores": []}
    for row in truth:
        masks = unpack_masks(row["masks"], (64, 64))
        moved = [np.roll(mask, random.integers(-3, 4, 2), (0, 1)) for mask in masks]
        noise = [rectangle(64, 64)] * int(random.integers(2))
        found["shapes"].append(pack_masks(np.array([*moved, *noise], dtype=bool).reshape(-1, 64, 64)))
        found["labels"].append(np.array([*row["labels"], *[0] * len(noise)], dtype=np.int64))
        found["scores"].append(random.random(len(moved) + len(noise)))
    ours = ready.recipe.score(found, truth)

    data = coco.COCO()
    annotations = [
        {"image_id": i, "category_id": label, "segmentation": mask, "area": area, "iscrowd": int(crowd)}
        for i, row in enumerate(truth)
        for mask, label, area, crowd in zip(row["masks"], row["labels"], row["areas"], row["crowds"], strict=True)
    ]
    data.dataset = {
        "images": [{"id": i, "height": 64, "width": 64} for i in range(len(truth))],
        "annotations": [{**annotation, "id": number} for number, annotation in enumerate(annotations, 1)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(SHAPE_NAMES)],
        "info": {},
    }
    data.createIndex()
    results = [
        {"image_id": i, "category_id": int(label), "segmentation": mask, "score": float(score)}
        for i in range(len(truth))
        for mask, label, score in zip(*(found[key][i] for key in ("shapes", "labels", "scores")), strict=True)
    ]
    evaluation = cocoeval.COCOeval(data, data.loadRes(results), "segm")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert sum(annotation["iscrowd"] for annotation in annotations) > 2
    assert 0.1 < ours["map"] < 0.9
    theirs = [np.nan if value == -1 else value for value in evaluation.stats[:6]]
    assert [ours[name] for name in ready.recipe.metrics()] == pytest.approx(theirs, abs=1e-12, nan_ok=True)
    assert np.isnan(ours["map_large"])  # no shape is that large
    by_class = evaluation.eval["precision"][:, :, :, 0, 2].mean((0, 1))
    assert [ours[f"map/{name}"] for name in SHAPE_NAMES] == pytest.approx(by_class, abs=1e-12)


# Answers and descriptions -------------------------------------------------------------------------------


def test_an_answer_names_what_was_found_the_best_first(few: Ready) -> None:
    masks = torch.full((1, 2, 64, 64), -20.0)
    masks[0, 0, :32], masks[0, 1, :, 48:] = 20.0, 20.0
    classes = torch.tensor([[[0.0, 0.0, 2.0, 0.0], [8.0, 0.0, 0.0, 0.0]]])
    outputs = SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks)
    sizes = {"seen": torch.tensor([[64, 64]]), "size": torch.tensor([[64, 64]])}
    predictions = few.recipe.predict(outputs, {"pixel_values": torch.zeros(1, 3, 64, 64), **sizes})
    answer = few.recipe.answer({name: values[0] for name, values in predictions.items()}, {})
    assert [found["label"] for found in answer] == ["circle", "triangle", "circle", "square"]
    expected = [classes[0, 1].softmax(-1)[0], *classes[0, 0].softmax(-1)[[2, 0, 1]]]
    assert [found["score"] for found in answer] == pytest.approx([float(score) for score in expected])
    right, upper = unpack_masks([found["mask"] for found in answer[:2]], (64, 64))
    assert np.array_equal(right, masks[0, 1].numpy() > 0)
    assert np.array_equal(upper, masks[0, 0].numpy() > 0)
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_a_described_mask_is_on_the_pixels_that_it_covers(fit: str) -> None:
    ready = prepare(rows_of(row_of(rectangle(120, 60))), fit=fit)
    described = ready.recipe.describe(ready.recipe.example(ready.rows["train"][0], np.random.default_rng(0), False))
    (shape,) = described.shapes
    assert shape.label == SHAPE_NAMES[1]
    white = np.asarray(described.image.convert("L")) > 160  # padding has the color of the mean
    assert white.shape == shape.mask.shape == (64, 64)
    assert (white & shape.mask).sum() / (white | shape.mask).sum() > 0.9
    left, top, right, bottom = map(int, shape.box)
    assert shape.mask[top:bottom, left:right].all()
    assert shape.mask.sum() == (right - left) * (bottom - top)


def test_rows_without_objects_have_no_targets_but_sizes(few: Ready) -> None:
    bare = make_object_rows(draw_images(2, 40, (1,))).remove_columns(["objects", "width", "height"])
    few.recipe.check(bare, "validation")
    row = few.recipe.preprocess(bare, "validation")[0]
    example = few.recipe.example(row, np.random.default_rng(0), training=False)
    assert example.keys() == {"pixel_values", "seen", "size"}
    assert few.recipe.describe(example).shapes == []


# What is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "complaint"),
    [
        ({"segmentation": pack_masks(rectangle(32, 32)[None])}, "a mask of 32x32 pixels, but its image has 64x64"),
        ({"segmentation": pack_masks(np.zeros((1, 64, 64), bool))}, "covers nothing"),
        ({"segmentation": [None]}, "is missing"),
        ({"category": [0, 1]}, "1 outlines, but 2 categories"),
    ],
    ids=["another size", "empty", "missing", "too many classes"],
)
def test_objects_that_cannot_be_trained_on_are_named(objects: dict[str, Any], complaint: str) -> None:
    good = row_of(rectangle(64, 64))
    with pytest.raises(DataError, match=f"split 'train', row 1, column 'objects': .*{complaint}"):
        prepare(rows_of(good, {**good, "objects": {**good["objects"], **objects}}))


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        ({"bytes": b"", "path": None}, "0 bytes"),
        ({"bytes": None, "path": "nowhere.png"}, "missing"),
        (encoded(np.zeros((1, 30_000, 3), np.uint8)), "30000x1 pixels"),
    ],
    ids=["empty", "missing", "thin"],
)
def test_an_image_that_cannot_be_seen_is_refused_before_the_first_update(image, complaint) -> None:
    empty = {"category": [], "iscrowd": [], "segmentation": []}
    with pytest.raises(DataError, match=f"split 'train', row 1, column 'image': .*{complaint}"):
        prepare(rows_of(row_of(rectangle(64, 64)), {"image": image, "objects": empty}), fit="pad")


def test_the_smallest_image_is_an_image() -> None:
    assert found_again(prepare(rows_of(row_of(np.ones((1, 1), bool)))))["map"] == pytest.approx(1.0)


# Models and files ----------------------------------------------------------------------------------------


def load_with(folder: Path, config: Any) -> tuple[Any, Any]:
    """The recipe and its model, from a configuration in `folder`."""
    recipe = installed().recipe("instance_segmentation")(vision_spec("instance_segmentation"))
    splits, model = sample("instance_segmentation")
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config.save_pretrained(folder)
    learn_and_check(recipe, splits)
    source = ModelSource(str(folder))
    recipe.processor = recipe.load_processor(source)
    return recipe, recipe.load_model(source)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_trains_and_is_measured(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    theirs = ["bird", "triangle", "circle", "square"]
    names = {"id2label": dict(enumerate(theirs)), "label2id": {name: number for number, name in enumerate(theirs)}}
    recipe, model = load_with(tmp_path, AutoConfig.for_model(kind, **CONFIGS[kind], **names))
    assert list(model.config.id2label.values()) == recipe.labels == theirs  # it knows ours, and more
    rows = recipe.preprocess(make_object_rows(draw_images(6, 64, (0,))), "validation")
    batch = recipe.collate([recipe.example(row, np.random.default_rng(0), False) for row in rows])
    outputs = recipe.forward(model.train(), batch)
    terms = recipe.loss(outputs, batch, training=True)
    assert terms.keys() == recipe.loss_counts(batch).keys()
    sum(terms.values()).backward()
    with torch.no_grad():
        numbers = recipe.score(recipe.predict(outputs, batch), rows)
    assert recipe.metrics().keys() <= numbers.keys()


def test_batch_norms_keep_their_statistics(tmp_path: Path) -> None:
    from transformers import AutoConfig

    resnet = {"model_type": "resnet", "layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16]}
    stages = {"depths": [1, 1, 1, 1], "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    config = {**CONFIGS["maskformer"], "backbone_config": {**resnet, **stages}}
    recipe, model = load_with(tmp_path, AutoConfig.for_model("maskformer", **config))
    before = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
    rows = recipe.preprocess(make_object_rows(draw_images(4, 64, (0,))), "train")
    recipe.forward(model.train(), recipe.collate([recipe.example(row, np.random.default_rng(0), True) for row in rows]))
    assert before
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_a_model_whose_loss_is_not_exact_is_refused_before_data_is_read(tmp_path: Path) -> None:
    from transformers import AutoConfig

    with pytest.raises(UsageError, match=r"'detr'.*mask2former, maskformer"):
        load_with(tmp_path, AutoConfig.for_model("detr", backbone_config={"model_type": "resnet"}))


def test_coco_files_are_read(tmp_path: Path) -> None:
    """Polygons for what is single, run lengths for the crowd."""
    (tmp_path / "a.png").write_bytes(encoded(np.zeros((40, 60, 3), np.uint8))["bytes"])
    crowd = np.zeros((40, 60), dtype=bool)
    crowd[20:30, 5:50] = True
    square = {"bbox": [4, 5, 10, 10], "segmentation": [[4, 5, 14, 5, 14, 15, 4, 15]], "iscrowd": 0}
    many = {"bbox": [5, 20, 45, 10], "segmentation": pack_masks(crowd[None])[0], "iscrowd": 1}
    content = {
        "images": [{"id": 3, "file_name": "a.png", "width": 60, "height": 40}],
        "categories": [{"id": 7, "name": "square"}],
        "annotations": [{"id": i, "image_id": 3, "category_id": 7, **each} for i, each in enumerate((square, many))],
    }
    path = tmp_path / "train.json"
    path.write_text(json.dumps(content))
    data = {"format": "coco", "files": {"train": str(path), "validation": str(path)}, "sample": False}
    model = {"name": str(sample("instance_segmentation")[1])}
    spec = vision_spec("instance_segmentation", data={**data, "images": str(tmp_path)}, model=model)
    recipe = installed().recipe("instance_segmentation")(spec)
    loaded = load_data(spec, recipe, tmp_path)
    recipe.processor = recipe.load_processor(loaded.source)
    (row,) = recipe.preprocess(loaded.splits["train"], "train")
    masks = unpack_masks(row["masks"], (60, 40))
    assert row["crowds"] == [False, True]
    assert row["boxes"][0] == [4, 5, 14, 15]
    assert masks[0, 5:15, 4:14].all()
    assert np.array_equal(masks[1], crowd)


# Promises ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 22])
def test_numbers_do_not_depend_on_the_evaluation_batch_size(few: Ready, count: int) -> None:
    ready = Ready(few.recipe, {split: rows.select(range(count)) for split, rows in few.rows.items()}, few.source)
    reference, *others = (
        evaluated(
            vision_loop(ready, vision_spec("instance_segmentation", evaluate={"batch_size": size}), torch.float64)
        )
        for size in (64, 1, 2, 3, 8)
    )
    loss = reference.pop("loss")
    for numbers in others:
        assert numbers.pop("loss") == pytest.approx(loss, rel=1e-12)
        assert numbers == pytest.approx(reference, rel=0, abs=0, nan_ok=True)
    assert [*few.recipe.metrics(), *(f"map/{name}" for name in SHAPE_NAMES)] == list(reference)


def test_the_same_spec_gives_the_same_bits_even_if_interrupted(few: Ready) -> None:
    augment = {"flip": 0.5, "scale": 0.3, "crop": 0.5, "color": 0.2}

    def loop(workers: int) -> Any:
        settings = {"train": {"accumulate": 2}, "data": {"workers": workers}}
        return vision_loop(few, vision_spec("instance_segmentation", {"augment": augment}, **settings))

    first = loop(0)
    list(first.run())
    again = interrupted(loop(2), loop(2), after=2)
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(first).items())
