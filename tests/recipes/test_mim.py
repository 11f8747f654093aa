"""Masked image modeling: what is hidden, what it costs, and the promises of the loop."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image
from tests.support.loops import evaluated, gradients, interrupted, trained, weights
from tests.support.visionruns import Ready, encoded, prepared, sample, vision_loop, vision_spec

from taskrecipe.data.images import open_rgb
from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed

KINDS: dict[str, dict[str, Any]] = {
    "vit": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "deit": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
    "swinv2": {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
    "focalnet": {
        "embed_dim": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "focal_levels": [1, 1],
        "focal_windows": [3, 3],
    },
}


@pytest.fixture(scope="module")
def few() -> Ready:
    """22 images: two full updates and a short one."""
    return prepared(vision_spec("mim"), rows=22)


def model_of(kind: str, folder: Path, task: dict[str, Any] | None = None, **values: Any) -> tuple[Any, Any]:
    """The recipe and a model of `kind`, for images of 32 pixels and patches of 4."""
    from transformers import AutoConfig

    shutil.copytree(sample("mim")[1], folder, dirs_exist_ok=True)
    AutoConfig.for_model(kind, **{**KINDS[kind], "image_size": 32, "patch_size": 4, **values}).save_pretrained(folder)
    recipe = installed().recipe("mim")(vision_spec("mim", task))
    recipe.processor = recipe.load_processor(ModelSource(str(folder)))
    return recipe, recipe.load_model(ModelSource(str(folder)))


def batch_of(recipe: Any, count: int, training: bool = True) -> Any:
    rows = recipe.preprocess(sample("mim")[0]["train"].select(range(count)), "train")
    return recipe.collate([recipe.example(row, np.random.default_rng(i), training) for i, row in enumerate(rows)])


def evaluated_masks(loop: Any) -> torch.Tensor:
    """The masks of all rows, as the model sees them in an evaluation."""
    recipe, seen = loop.evaluations[0].recipe, []
    forward = recipe.forward

    def watch(model: Any, batch: Any) -> Any:
        seen.append(batch["bool_masked_pos"])
        return forward(model, batch)

    recipe.forward = watch
    evaluated(loop)
    return torch.cat(seen)


# Masks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("square", "ratio", "hidden"), [(4, 0.5, 32), (8, 0.6, 40), (16, 0.3, 32)])
def test_whole_squares_are_hidden_and_as_many_as_asked(square: int, ratio: float, hidden: int, tmp_path: Path) -> None:
    recipe, _ = model_of("vit", tmp_path, {"mask_patch_size": square, "mask_ratio": ratio})
    mask = recipe._draw_mask(32, np.random.default_rng(0)).reshape(8, 8)
    assert mask.sum() == hidden
    scale = square // 4
    grid = mask.reshape(8 // scale, scale, 8 // scale, scale)
    assert (grid.any((1, 3)) == grid.all((1, 3))).all()


def test_masks_are_redrawn_in_training_and_stay_in_evaluation(few: Ready) -> None:
    def masks(purpose: str, epoch: int) -> torch.Tensor:
        loop = vision_loop(few, vision_spec("mim", train={"epochs": 2, "order": "sequential"}))
        if purpose == "evaluation":
            return evaluated_masks(loop)
        first = epoch * loop.per_epoch
        return torch.cat([next(loop.state.updates(first + i)).batches[0].inputs["bool_masked_pos"] for i in range(3)])

    assert torch.equal(masks("evaluation", 0), masks("evaluation", 0))
    assert torch.equal(masks("training", 0), masks("training", 0))
    assert not torch.equal(masks("training", 0), masks("training", 1))
    assert len({row.numpy().tobytes() for row in masks("evaluation", 0)}) > 15


def test_squares_that_do_not_fit_are_refused_with_those_that_do(tmp_path: Path) -> None:
    for square in (6, 3, 64):
        with pytest.raises(UsageError, match=r"32 pixels and patches of 4, it can be 4, 8, 16$"):
            model_of("vit", tmp_path, {"mask_patch_size": square})


def test_a_model_of_other_channels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 channels"):
        model_of("vit", tmp_path, num_channels=1)


# Loss and numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_models_own_but_for_its_small_number(kind: str, tmp_path: Path) -> None:
    recipe, model = model_of(kind, tmp_path)
    model.eval()
    batch = batch_of(recipe, 4)
    assert torch.isclose(recipe.loss(model(**batch), batch, training=False)["loss"], model(**batch).loss, rtol=1e-6)


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_only_hidden_pixels_count(kind: str, tmp_path: Path) -> None:
    recipe, model = model_of(kind, tmp_path)
    model.eval()
    batch = batch_of(recipe, 2)
    before = recipe.loss(recipe.forward(model, batch), batch, training=False)["loss"]
    hidden = batch["bool_masked_pos"].reshape(2, 1, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
    drawn = model(**batch).reconstruction
    expected = (drawn - batch["pixel_values"]).abs()[hidden.expand(-1, 3, -1, -1)].mean()
    assert torch.isclose(before, expected, rtol=1e-6)


def test_psnr_is_measured_in_stored_pixels(few: Ready) -> None:
    recipe = few.recipe
    batch = batch_of(recipe, 3, training=False)
    off = 0.1  # by a tenth of the range of stored pixels, which is 20 dB
    drawn = batch["pixel_values"] + off / recipe.processor.image_std[0]
    found = recipe.predict(SimpleNamespace(reconstruction=drawn), batch)["mse"].numpy()
    numbers = recipe.score({"mse": found}, few.rows["validation"])
    assert numbers["psnr"] == pytest.approx(20.0, abs=1e-4)
    answer = recipe.answer({"mse": found[0]}, few.rows["validation"][0])
    assert answer == {"mse": pytest.approx(0.01, rel=1e-4), "psnr": pytest.approx(20.0, abs=1e-4)}


def test_a_described_image_shows_what_is_hidden(few: Ready) -> None:
    (row,) = few.rows["validation"].select([0])
    example = few.recipe.example(row, np.random.default_rng(0), training=False)
    described = few.recipe.describe(example)
    (hidden,) = described.shapes
    assert described.image.size == (48, 48)
    stored = open_rgb(row["image"])[0]
    assert np.abs(np.asarray(described.image).astype(int) - np.asarray(stored).astype(int)).max() <= 1
    assert hidden.mask.shape == (48, 48)
    assert np.array_equal(hidden.mask[::8, ::8].ravel(), example["bool_masked_pos"])
    assert (hidden.mask.mean(), described.facts) == (0.5, {"hidden": "50%"})


# Images --------------------------------------------------------------------------------------------------


def test_evaluation_sees_the_middle_of_an_image_and_training_varies_it(few: Ready) -> None:
    pixels = np.zeros((48, 144, 3), np.uint8)
    pixels[:, 48:96] = 255
    row = {"image": encoded(pixels)}
    seen = few.recipe.example(row, np.random.default_rng(0), training=False)["pixel_values"]
    assert seen.shape == (3, 48, 48)
    assert (seen == 1.0).all()
    varied = {few.recipe.example(row, np.random.default_rng(i), True)["pixel_values"].tobytes() for i in range(9)}
    assert len(varied) > 2


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (2000, 1)])
def test_odd_sizes_are_taken(size: tuple[int, int], few: Ready) -> None:
    row = {"image": encoded(np.zeros((*size, 3), np.uint8))}
    for training in (True, False):
        example = few.recipe.example(row, np.random.default_rng(0), training)
        assert example["pixel_values"].shape == (3, 48, 48)


@pytest.mark.parametrize(
    "bad",
    [
        {"bytes": b"", "path": None},
        {"bytes": b"no image", "path": None},
        {"bytes": encoded(np.zeros((64, 64, 3), np.uint8), kind="JPEG")["bytes"][:300], "path": None},
        None,
    ],
)
def test_an_image_that_cannot_be_opened_is_named_with_its_row(bad: Any) -> None:
    good = encoded(np.zeros((64, 64, 3), np.uint8))
    rows = Dataset.from_dict({"image": [good, bad]}, features=Features({"image": Image()}))
    with pytest.raises(DataError) as raised:
        prepared(vision_spec("mim"), {"train": rows, "validation": rows})
    assert (raised.value.split, raised.value.row, raised.value.column) == ("train", 1, "image")


# Promises ------------------------------------------------------------------------------------------------


def test_accumulation_gives_the_gradients_of_one_batch(few: Ready) -> None:
    def taken(accumulate: int, update: int) -> list[torch.Tensor]:
        spec = vision_spec("mim", train={"accumulate": accumulate})
        return gradients(vision_loop(few, spec, torch.float64), update)

    for update in (0, 2):
        whole = taken(1, update)
        for accumulate in (2, 4, 8):
            parts = taken(accumulate, update)
            assert max(float((a - b).abs().max()) for a, b in zip(whole, parts, strict=True)) < 1e-12


def test_numbers_do_not_depend_on_the_evaluation_batch_size(few: Ready) -> None:
    reference, *others = (
        evaluated(vision_loop(few, vision_spec("mim", evaluate={"batch_size": size}), torch.float64))
        for size in (64, 1, 3, 8)
    )
    for numbers in others:
        assert numbers == pytest.approx(reference, rel=1e-12)
    assert set(reference) == set(few.recipe.metrics())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_spec_gives_the_same_bits_even_if_interrupted(few: Ready, workers: int) -> None:
    def loop(workers: int) -> Any:
        spec = vision_spec("mim", train={"accumulate": 2}, data={"workers": workers})
        return vision_loop(few, spec)

    first = loop(0)
    list(first.run())
    again = interrupted(loop(workers), loop(workers), after=2)
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(first).items())


@pytest.mark.chaos  # the conformance kit trains on the sample more briefly
def test_the_sample_is_learned() -> None:
    """Shorter than the real sample run; always predicting an image's mean color would give a loss of 0.14."""
    spec = vision_spec("mim", train={"epochs": 12, "batch_size": 16}, schedule={"warmup": 50})
    loop = vision_loop(prepared(spec), spec)
    before = evaluated(loop)
    after = trained(loop)
    assert before["loss"] > 0.22
    assert after["loss"] < 0.13
    assert after["psnr"] > before["psnr"] + 4
