"""Masked image modelling: hidden parts of a picture drawn from those around them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from taskrecipe.core.errors import UsageError
from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits
from taskrecipe.core.spec.table import Count, TaskOptions
from taskrecipe.core.vision.augment import Augment, Scene

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

SAMPLE_SIZE = 48
"""Side of a sample picture in pixels."""


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
    augment: Augment = Field(default=Augment(crop=0.5), description="How training pictures are varied.")


class MaskedImage(Recipe):
    """Masked image modelling after SimMIM (ViT, DeiT, Swin, FocalNet), from pretrained weights or from scratch.

    Random squares of a picture are hidden, and the model draws them. In training they are chosen anew every epoch; in
    evaluation they stay the same, so that numbers compare. The loss is the mean distance of hidden pixels from what
    was drawn, in the units the model sees; `psnr` is the same in decibels, of pixels as they are stored. The size of
    pictures is the model's: `[model.config] image_size` changes it.
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

    def metrics(self) -> dict[str, Direction]:
        """The loss, and the ratio of signal to noise in decibels."""
        return {"loss": "min", "psnr": "max"}

    def columns(self) -> dict[str, Column]:
        """A picture."""
        return {"image": Column("a picture")}

    # Data -------------------------------------------------------------------------------------------

    def sample(self, folder: Path) -> Splits:
        """Coloured shapes on textured ground, and a small ViT that completes them."""
        from transformers import ViTConfig
        from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

        from taskrecipe.core.vision.shapes import sample_splits

        ViTConfig(
            image_size=SAMPLE_SIZE,
            patch_size=8,
            hidden_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=192,
        ).save_pretrained(folder)
        ViTImageProcessorPil().save_pretrained(folder)
        splits = sample_splits({"train": 640, "validation": 160}, SAMPLE_SIZE, self.spec.seed)
        return {split: rows.select_columns(["image"]) for split, rows in splits.items()}

    def load_processor(self, source: ModelSource) -> Any:
        """The model's image processor, set to the model's image size."""
        from taskrecipe.core.vision.processors import image_processor

        self._require_fit(source.config())
        side = int(source.config().image_size)
        return image_processor(source, size={"height": side, "width": side}, do_center_crop=False)

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Check that every picture can be opened; they are decoded as they are needed."""
        from taskrecipe.core.data.images import check_images, undecoded

        pictures = rows.select_columns(["image"])
        check_images(pictures, split)
        return undecoded(pictures)

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """A picture, varied in training and else its middle, and which of its patches are hidden."""
        from taskrecipe.core.data.images import open_rgb

        scene = Scene(open_rgb(row["image"])[0])
        scene = self.options.augment.apply(scene, random) if training else _middle(scene)
        pixels = np.asarray(self.processor(scene.image)["pixel_values"][0])
        return {"pixel_values": pixels, "bool_masked_pos": self._mask(pixels.shape[-1], random)}

    # Model ------------------------------------------------------------------------------------------

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A model that draws pixels, whose head makes a picture of the input's size."""
        from transformers import AutoModelForMaskedImageModeling

        stride = _stride(source.config())
        model: torch.nn.Module = source.model(AutoModelForMaskedImageModeling, encoder_stride=stride)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        """How many patches are hidden."""
        return {"loss": float(batch["bool_masked_pos"].sum())}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """The mean distance over all hidden pixels."""
        # The model's own loss has a small number in its divisor, which would count once for each micro-batch.
        drawn = model(**batch).reconstruction
        distance = (batch["pixel_values"] - drawn).abs()
        hidden = _pixels(batch["bool_masked_pos"], distance)
        return Loss({"loss": (distance * hidden).sum() / (hidden.sum() * distance.shape[1])}, drawn)

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """Each picture's squared error over its hidden pixels, in units of stored ones from 0 to 1."""
        error = batch["pixel_values"] - outputs
        if self.processor.do_normalize:
            error = error * error.new_tensor(self.processor.image_std)[:, None, None]
        hidden = _pixels(batch["bool_masked_pos"], error)
        return {"mse": (error**2 * hidden).sum((1, 2, 3)) / (hidden.sum((1, 2, 3)) * error.shape[1])}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """The ratio of signal to noise over all hidden pixels; the loss the loop knows itself."""
        return {"psnr": -10 * math.log10(max(float(np.mean(predictions["mse"], dtype=np.float64)), 1e-12))}

    # Masks ------------------------------------------------------------------------------------------

    def _mask(self, side: int, random: np.random.Generator) -> NDArray[np.bool_]:
        """Which patches of the model are hidden: all those of the squares that are drawn."""
        squares = side // self.options.mask_patch_size
        count = math.ceil(squares**2 * self.options.mask_ratio)
        hidden = np.zeros(squares**2, dtype=bool)
        hidden[random.permutation(squares**2)[:count]] = True
        grid = hidden.reshape(squares, squares)
        return grid.repeat(self.scale, axis=0).repeat(self.scale, axis=1).ravel()

    def _require_fit(self, config: Any) -> None:
        """Squares must tile the picture, and patches the squares."""
        square, side, patch = self.options.mask_patch_size, config.image_size, config.patch_size
        if config.num_channels != 3:
            raise UsageError(f"[model] takes pictures of {config.num_channels} channels; pictures here have 3")
        if side % square or square % patch:
            sizes = [size for size in range(patch, side, patch) if side % size == 0]
            raise UsageError(
                f"[task].mask_patch_size is {square}; for this model, with pictures of {side} pixels and patches of "
                f"{patch}, it can be {', '.join(map(str, sizes))}"
            )
        self.scale = square // patch


def _middle(scene: Scene) -> Scene:
    """The largest square around the picture's centre."""
    width, height = scene.image.size
    side = min(width, height)
    return scene.window((width - side) // 2, (height - side) // 2, (side, side))


def _pixels(patches: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Which pixels are hidden, (pictures, 1, height, width), of the type of `like`."""
    side = math.isqrt(patches.shape[1])
    scale = like.shape[-1] // side
    grid = patches.reshape(-1, 1, side, side).to(like.dtype)
    return grid.repeat_interleave(scale, 2).repeat_interleave(scale, 3)


def _stride(config: Any) -> int:
    """Pixels of the input for one step of the encoder's output; stages of a pyramid halve it each."""
    stages = len(getattr(config, "depths", [1]))
    return int(config.patch_size * 2 ** (stages - 1))
