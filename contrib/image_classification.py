"""Image classification: which class an image belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from taskrecipe import Batch, Column, Direction, Predictions, Recipe, Row, Splits, TaskOptions
from taskrecipe.vision import Augment, Scene

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedImage, ModelSource

SAMPLE_SIZE = 32
"""Side of a sample image in pixels."""

TOP = 5
LIKELIEST = 10
"""Classes of each image that are kept, the likeliest first. Thousands of classes for each row would fill the memory."""


class ImageClassificationOptions(TaskOptions):
    """Options of `image_classification`."""

    augment: Augment = Field(default=Augment(crop=0.5), description="How training images are varied.")


class ImageClassification(Recipe):
    """Image classification with any model of AutoModelForImageClassification, pretrained or from scratch.

    Data is a folder of folders, one for each class (`format = "imagefolder"`), or a hub data set with the columns
    `image` and `label`. A model that comes with the same class names in another order keeps its order. `top_5` counts
    an image as right if its class is among the five that the model finds likeliest.
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

    @override
    def metrics(self) -> dict[str, Direction]:
        return {"accuracy": "max", "top_5": "max"}

    @override
    def columns(self) -> dict[str, Column]:
        return {"image": Column("an image"), "label": Column("its class, by name or number", target=True)}

    @override
    def sample(self, folder: Path) -> Splits:
        """Images of one colored shape, and a small ViT."""
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
        return {name: _sample_split(count, (self.spec.seed, i)) for i, (name, count) in enumerate(sizes.items())}

    @override
    def learn(self, rows: Dataset) -> None:
        from taskrecipe.data import learn_classes

        self.labels = learn_classes(rows, "label")

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_classes, check_images

        check_images(rows, split)
        check_classes(rows, split, "label", self.labels)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.data import align_labels
        from taskrecipe.vision import load_sized_processor

        self.labels = align_labels(self.labels, source.config())
        return load_sized_processor(source)

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Number the labels. Images are decoded when they are needed."""
        from taskrecipe.data import add_labels, keep_encoded

        return add_labels(keep_encoded(rows.select_columns(["image"])), rows, "label", self.labels)

    @override
    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        from taskrecipe.data import open_rgb

        scene = Scene(open_rgb(row["image"])[0])
        scene = self.options.augment.apply(scene, random) if training else scene
        labels = {"labels": row["labels"]} if "labels" in row else {}
        return {"pixel_values": np.asarray(self.processor(scene.image)["pixel_values"][0]), **labels}

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForImageClassification

        model: torch.nn.Module = source.model(
            AutoModelForImageClassification,
            id2label=dict(enumerate(self.labels)),
            problem_type="single_label_classification",
        )
        return model

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        likeliest = outputs.logits.topk(min(LIKELIEST, len(self.labels))).indices
        probabilities = outputs.logits.softmax(-1).gather(1, likeliest)
        return {"label": likeliest[:, 0], "likeliest": likeliest, "probabilities": probabilities}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        right = np.asarray(rows["labels"])[:, None] == predictions["likeliest"]
        return {"accuracy": float(right[:, 0].mean()), "top_5": float(right[:, :TOP].any(1).mean())}

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        right = np.asarray(rows["labels"])[:, None] == predictions["likeliest"]
        return {"accuracy": right[:, 0].astype(float).tolist(), "top_5": right[:, :TOP].any(1).astype(float).tolist()}

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        names = [self.labels[int(number)] for number in prediction["likeliest"]]
        probabilities = dict(zip(names, map(float, prediction["probabilities"]), strict=True))
        return {"label": self.labels[int(prediction["label"])], "probabilities": probabilities}

    @override
    def describe(self, example: Row) -> DescribedImage:
        from taskrecipe.vision import describe_pixels

        label = {"label": self.labels[int(example["labels"])]} if "labels" in example else {}
        return describe_pixels(example["pixel_values"], self.processor, facts=label)


def _sample_split(count: int, seed: tuple[int, int]) -> Dataset:
    from datasets import ClassLabel, Dataset, Features, Image

    from taskrecipe.vision import SHAPE_NAMES, draw_image

    random = np.random.default_rng(seed)
    drawn = [draw_image(random, SAMPLE_SIZE, fewest=1, most=1) for _ in range(count)]
    images = [{"bytes": image.png(), "path": None} for image in drawn]
    labels = [int(image.classes[0]) for image in drawn]
    features = Features({"image": Image(), "label": ClassLabel(names=list(SHAPE_NAMES))})
    return Dataset.from_dict({"image": images, "label": labels}, features=features)
