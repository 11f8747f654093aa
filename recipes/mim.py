"""Masked image modeling: the model predicts hidden parts of an image from the parts around them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from taskrecipe import (
    Batch,
    Column,
    Count,
    Direction,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    TaskOptions,
    UsageError,
)
from taskrecipe.vision import Augment, Scene

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from PIL.Image import Image

    from taskrecipe import DescribedImage, ModelSource

SAMPLE_SIZE = 48
"""Side of a sample image in pixels."""


class MaskedImageOptions(TaskOptions):
    """Options of `mim`."""

    mask_patch_size: Count = Field(
        default=32,
        le=4096,
        description="Side in pixels of the squares that are hidden; it must divide the model's image size, and be a "
        "multiple of its patch size.",
    )
    mask_ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.6, description="Share of the squares that are hidden."
    )
    augment: Augment = Field(default=Augment(crop=0.5), description="How training images are varied.")


class MaskedImage(Recipe):
    """Masked image modeling after SimMIM (ViT, DeiT, Swin, FocalNet), from pretrained weights or from scratch.

    Random squares of an image are hidden, and the model predicts their pixels. Training hides other squares in every
    epoch; evaluation always hides the same, so that numbers compare. The loss is the mean absolute error of the hidden
    pixels, in the units that the model sees; `psnr` is their squared error in decibels, in the units of stored pixels.
    The model decides the size of images: `[model.config] image_size` changes it.
    """

    Options = MaskedImageOptions
    options: MaskedImageOptions
    sample_settings: ClassVar = {
        "task.mask_patch_size": 8,
        "task.mask_ratio": 0.5,
        "train.epochs": 16,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "train.learning_rate": 3e-3,
        "schedule.warmup": 50,
        "evaluate.every": 160,
        "checkpoint.every": 160,
    }

    @override
    def metrics(self) -> dict[str, Direction]:
        return {"loss": "min", "psnr": "max"}

    @override
    def columns(self) -> dict[str, Column]:
        return {"image": Column("an image")}

    # Rows -------------------------------------------------------------------------------------------

    @override
    def sample(self, folder: Path) -> Splits:
        """Colored shapes on textured ground, and a small ViT."""
        from transformers import ViTConfig
        from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

        from taskrecipe.vision import make_sample_splits

        ViTConfig(
            image_size=SAMPLE_SIZE,
            patch_size=8,
            hidden_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=192,
        ).save_pretrained(folder)
        ViTImageProcessorPil().save_pretrained(folder)
        splits = make_sample_splits({"train": 640, "validation": 160}, SAMPLE_SIZE, self.spec.seed)
        return {split: rows.select_columns(["image"]) for split, rows in splits.items()}

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_images

        check_images(rows, split)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        """Load the model's image processor, set to the model's image size."""
        from taskrecipe.vision import load_image_processor

        self._require_fit(source.config())
        side = int(source.config().image_size)
        return load_image_processor(source, size={"height": side, "width": side}, do_center_crop=False)

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Keep images encoded: they are decoded when they are needed."""
        from taskrecipe.data import keep_encoded

        return keep_encoded(rows.select_columns(["image"]))

    @override
    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Return the image, varied in training and otherwise its middle, and which of its patches are hidden."""
        from taskrecipe.data import open_rgb

        scene = Scene(open_rgb(row["image"])[0])
        scene = self.options.augment.apply(scene, random) if training else _crop_middle(scene)
        pixels = np.asarray(self.processor(scene.image)["pixel_values"][0])
        return {"pixel_values": pixels, "bool_masked_pos": self._draw_mask(pixels.shape[-1], random)}

    # Model ------------------------------------------------------------------------------------------

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForMaskedImageModeling

        stride = _encoder_stride(source.config())
        model: torch.nn.Module = source.model(AutoModelForMaskedImageModeling, encoder_stride=stride)
        return model

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(batch["bool_masked_pos"].sum())}

    @override
    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        # The model's own loss has a small number in its divisor, which would count once for each micro-batch.
        error = (batch["pixel_values"] - outputs.reconstruction).abs()
        hidden = _hidden_pixels(batch["bool_masked_pos"], error)
        return {"loss": (error * hidden).sum() / (hidden.sum() * error.shape[1])}

    @override
    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        error = (batch["pixel_values"] - outputs.reconstruction).abs()
        hidden = _hidden_pixels(batch["bool_masked_pos"], error)
        return (error * hidden).sum((1, 2, 3)), hidden.sum((1, 2, 3)) * error.shape[1]

    # Answers ----------------------------------------------------------------------------------------

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        """Return each image's mean squared error over its hidden pixels, in units of stored pixels from 0 to 1."""
        error = batch["pixel_values"] - outputs.reconstruction
        if self.processor.do_normalize:
            error = error * error.new_tensor(self.processor.image_std)[:, None, None]
        hidden = _hidden_pixels(batch["bool_masked_pos"], error)
        return {"mse": (error**2 * hidden).sum((1, 2, 3)) / (hidden.sum((1, 2, 3)) * error.shape[1])}

    @override
    def infer(self, model: torch.nn.Module, batch: Batch) -> Predictions:
        """Predict, and keep the pixels that the model fills in, besides those that it was shown."""
        outputs = self.forward(model, batch)
        pixels, hidden = batch["pixel_values"], _hidden_pixels(batch["bool_masked_pos"], batch["pixel_values"])
        filled = pixels * (1 - hidden) + outputs.reconstruction * hidden
        return {**self.predict(outputs, batch), "filled": filled, "shown": pixels * (1 - hidden)}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        return {"psnr": _psnr(float(np.mean(predictions["mse"], dtype=np.float64)))}

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        mse = np.asarray(predictions["mse"], dtype=np.float64)
        return lambda chosen: {"psnr": _psnr(float(mse[chosen].mean()))}

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        mse = float(prediction["mse"])
        return {"mse": mse, "psnr": _psnr(mse)}

    @override
    def answer_images(self, prediction: Row, row: Row) -> dict[str, Image]:
        """Return the image with its hidden squares filled in, and what the model was shown of it."""
        from taskrecipe.vision import restore_pixels

        return {name: restore_pixels(prediction[name], self.processor) for name in ("filled", "shown")}

    @override
    def describe(self, example: Row) -> DescribedImage:
        from taskrecipe import Shape
        from taskrecipe.vision import describe_pixels

        pixels, hidden = np.asarray(example["pixel_values"]), np.asarray(example["bool_masked_pos"])
        side = math.isqrt(hidden.size)
        scale = pixels.shape[-1] // side
        mask = hidden.reshape(side, side).repeat(scale, axis=0).repeat(scale, axis=1)
        share = {"hidden": f"{hidden.mean():.0%}"}
        return describe_pixels(pixels, self.processor, [Shape("hidden", mask=mask)], share)

    # Masks ------------------------------------------------------------------------------------------

    def _draw_mask(self, side: int, random: np.random.Generator) -> NDArray[np.bool_]:
        """Choose random squares, and return which patches of the model are in them."""
        squares = side // self.options.mask_patch_size
        count = math.ceil(squares**2 * self.options.mask_ratio)
        hidden = np.zeros(squares**2, dtype=bool)
        hidden[random.permutation(squares**2)[:count]] = True
        grid = hidden.reshape(squares, squares)
        return grid.repeat(self.scale, axis=0).repeat(self.scale, axis=1).ravel()

    def _require_fit(self, config: Any) -> None:
        """Refuse squares that don't fill the image, or that patches don't fill."""
        square, side, patch = self.options.mask_patch_size, config.image_size, config.patch_size
        if config.num_channels != 3:
            raise UsageError(f"[model] takes images of {config.num_channels} channels, but images are read with 3")
        if side % square or square % patch:
            sizes = [size for size in range(patch, side, patch) if side % size == 0]
            raise UsageError(
                f"[task].mask_patch_size is {square}; for this model, with images of {side} pixels and patches of "
                f"{patch}, it can be {', '.join(map(str, sizes))}"
            )
        self.scale = square // patch


def _psnr(mse: float) -> float:
    """Return the peak signal-to-noise ratio in decibels."""
    return -10 * math.log10(max(mse, 1e-12))


def _crop_middle(scene: Scene) -> Scene:
    """Return the largest square around the center of the image."""
    width, height = scene.image.size
    side = min(width, height)
    return scene.take_window((width - side) // 2, (height - side) // 2, (side, side))


def _hidden_pixels(patches: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return which pixels are hidden, (images, 1, height, width), as numbers of the type of `like`."""
    side = math.isqrt(patches.shape[1])
    scale = like.shape[-1] // side
    grid = patches.reshape(-1, 1, side, side).to(like.dtype)
    return grid.repeat_interleave(scale, 2).repeat_interleave(scale, 3)


def _encoder_stride(config: Any) -> int:
    """Return how many input pixels one step of the encoder's output spans. Each stage of a pyramid doubles it."""
    stages = len(getattr(config, "depths", [1]))
    return int(config.patch_size * 2 ** (stages - 1))
