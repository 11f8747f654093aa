"""Image classification: what is in a picture?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from taskrecipe.core.recipe import Batch, Column, Direction, Recipe, Row, Splits
from taskrecipe.core.spec.table import TaskOptions
from taskrecipe.core.vision.augment import Augment, Scene

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

SAMPLE_SIZE = 32
"""Side of a sample picture in pixels."""

TOP = 5


class ImageClassificationOptions(TaskOptions):
    """Options of `image_classification`."""

    augment: Augment = Field(default=Augment(crop=0.5), description="How training pictures are varied.")


class ImageClassification(Recipe):
    """Image classification with any model of AutoModelForImageClassification, pretrained or from scratch.

    Data is a folder of folders, one a class (`format = "imagefolder"`), or a hub data set with the columns `image` and
    `label`. A model that comes with the same class names in another order keeps its order. `top_5` counts a picture
    as right if its class is among the five that the model holds most likely.
    """

    Options = ImageClassificationOptions
    options: ImageClassificationOptions
    smooths_labels = True
    sample_settings: ClassVar = {
        "train.epochs": 8,
        "train.batch_size": 32,
        "train.accumulate": 1,
        "train.learning_rate": 2e-3,
        "schedule.warmup": 10,
    }

    def metrics(self) -> dict[str, Direction]:
        """The share of pictures whose class is predicted, or is among the five most likely ones."""
        return {"accuracy": "max", "top_5": "max"}

    def columns(self) -> dict[str, Column]:
        """A picture and its class."""
        return {"image": Column("a picture"), "label": Column("its class, by name or number")}

    def sample(self, folder: Path) -> Splits:
        """One coloured shape a picture, and a small ViT that tells them apart."""
        from transformers import ViTConfig
        from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

        ViTConfig(
            image_size=SAMPLE_SIZE,
            patch_size=8,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
        ).save_pretrained(folder)
        ViTImageProcessorPil(size={"height": SAMPLE_SIZE, "width": SAMPLE_SIZE}).save_pretrained(folder)
        sizes = {"train": 384, "validation": 96}
        return {name: _drawn(count, (self.spec.seed, i)) for i, (name, count) in enumerate(sizes.items())}

    def check(self, splits: Splits) -> None:
        """Labels must be classes that training saw, and every picture must open."""
        from taskrecipe.core.data.images import check_images
        from taskrecipe.core.data.labels import class_names

        for split, rows in splits.items():
            check_images(rows, split)
        self.labels = class_names(splits, "label")

    def load_processor(self, source: ModelSource) -> Any:
        """The model's image processor; the model's own order of the labels is taken over, if it has one."""
        from taskrecipe.core.data.labels import align_labels
        from taskrecipe.core.vision.processors import sized_processor

        self.labels = align_labels(self.labels, source.config())
        return sized_processor(source)

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Number the labels; pictures are decoded as they are needed."""
        from taskrecipe.core.data.images import undecoded
        from taskrecipe.core.data.labels import label_ids

        return undecoded(rows.select_columns(["image"])).add_column("labels", label_ids(rows, "label", self.labels))

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """The pixels, varied in training."""
        from taskrecipe.core.data.images import open_rgb

        scene = Scene(open_rgb(row["image"])[0])
        scene = self.options.augment.apply(scene, random) if training else scene
        return {"pixel_values": np.asarray(self.processor(scene.image)["pixel_values"][0]), "labels": row["labels"]}

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A classifier with the right number of classes and their names."""
        from transformers import AutoModelForImageClassification

        model: torch.nn.Module = source.model(
            AutoModelForImageClassification,
            id2label=dict(enumerate(self.labels)),
            problem_type="single_label_classification",
        )
        return model

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """How many classes are held more likely than the right one."""
        right = outputs.logits.gather(1, batch["labels"][:, None])
        return {"rank": (outputs.logits > right).sum(1)}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """The shares of pictures whose class comes first, and among the first five."""
        rank = predictions["rank"]
        return {"accuracy": float((rank == 0).mean()), "top_5": float((rank < TOP).mean())}


def _drawn(count: int, seed: tuple[int, int]) -> Dataset:
    from datasets import ClassLabel, Dataset, Features, Image

    from taskrecipe.core.vision.shapes import NAMES, draw

    random = np.random.default_rng(seed)
    pictures = [draw(random, SAMPLE_SIZE, fewest=1, most=1) for _ in range(count)]
    images = [{"bytes": picture.png(), "path": None} for picture in pictures]
    labels = [int(picture.classes[0]) for picture in pictures]
    features = Features({"image": Image(), "label": ClassLabel(names=list(NAMES))})
    return Dataset.from_dict({"image": images, "label": labels}, features=features)
