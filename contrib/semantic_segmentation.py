"""Semantic segmentation: the class of every pixel."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from taskrecipe.core.errors import DataError
from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits, Total
from taskrecipe.core.spec.table import TaskOptions, Text
from taskrecipe.core.vision.augment import Augment, Scene

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

SAMPLE_SIZE = 64
"""Side of a sample picture in pixels."""

IGNORED = 255
"""What pixels without a class are called inside; transformers' models leave them out of their loss."""


class SemanticSegmentationOptions(TaskOptions):
    """Options of `semantic_segmentation`."""

    labels: list[Text] | None = Field(
        default=None, min_length=2, max_length=255, description="Names of the classes, in the order of their numbers."
    )
    ignore_index: Annotated[int, Field(ge=0, le=255)] = Field(
        default=IGNORED, description="The number of pixels that belong to no class and are left out."
    )
    reduce_labels: bool = Field(
        default=False, description="Class 0 is background that is left out; the others count from 1 (ADE20K)."
    )
    augment: Augment = Field(default=Augment(crop=0.5), description="How training pictures are varied.")


class SemanticSegmentation(Recipe):
    """Semantic segmentation with any model of AutoModelForSemanticSegmentation (SegFormer, BEiT, DPT, …).

    Each picture has a map of its size whose pixels are class numbers. At the size the model sees, `mean_iou` over the
    classes that occur is measured, and the share of pixels that are right. Statistics of batches would make an update
    depend on how it is split, so batch norms keep those they come with.
    """

    Options = SemanticSegmentationOptions
    options: SemanticSegmentationOptions
    sample_settings: ClassVar = {
        "task.labels": ["ground", "circle", "square", "triangle"],
        "task.reduce_labels": False,
        "train.epochs": 16,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "train.learning_rate": 3e-3,
        "schedule.warmup": 10,
    }

    def metrics(self) -> dict[str, Direction]:
        """Overlap with the right map, and the share of right pixels."""
        return {"mean_iou": "max", "pixel_accuracy": "max"}

    def columns(self) -> dict[str, Column]:
        """A picture and the map of its classes."""
        return {"image": Column("a picture"), "annotation": Column("a picture whose pixels are class numbers")}

    def sample(self, folder: Path) -> Splits:
        """Coloured shapes on textured ground, and a small SegFormer that finds them."""
        from transformers import SegformerConfig
        from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

        SegformerConfig(
            depths=[1, 1, 1, 1],
            hidden_sizes=[16, 32, 48, 64],
            num_attention_heads=[1, 2, 3, 4],
            sr_ratios=[4, 2, 1, 1],
            decoder_hidden_size=48,
        ).save_pretrained(folder)
        SegformerImageProcessorPil(size={"height": SAMPLE_SIZE, "width": SAMPLE_SIZE}).save_pretrained(folder)
        sizes = {"train": 256, "validation": 64}
        return {name: _drawn(count, (self.spec.seed, i)) for i, (name, count) in enumerate(sizes.items())}

    def check(self, splits: Splits) -> None:
        """Every picture must open and have a map of its size, with classes that have a name."""
        from taskrecipe.core.data.images import check_images

        highest = -1
        for split, rows in splits.items():
            check_images(rows, split)
            highest = max(highest, self._check_maps(rows, split))
        self.labels = self.options.labels or [str(number) for number in range(highest + 1)]

    def load_processor(self, source: ModelSource) -> Any:
        """The model's image processor; maps are turned here, together with their pictures."""
        from taskrecipe.core.vision.processors import sized_processor

        return sized_processor(source)

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Pictures and maps are decoded as they are needed."""
        from taskrecipe.core.data.images import undecoded

        return undecoded(undecoded(rows.select_columns(["image", "annotation"])), "annotation")

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """The pixels and the class of each, varied together in training."""
        from PIL import Image

        from taskrecipe.core.data.images import open_rgb

        scene = Scene(open_rgb(row["image"])[0], class_map=self._map(row["annotation"]), outside=IGNORED)
        scene = self.options.augment.apply(scene, random) if training else scene
        pixels = np.asarray(self.processor(scene.image)["pixel_values"][0])
        classes = Image.fromarray(np.ascontiguousarray(scene.class_map))
        resized = classes.resize((pixels.shape[2], pixels.shape[1]), Image.Resampling.NEAREST)
        return {"pixel_values": pixels, "labels": np.asarray(resized, dtype=np.int64)}

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A segmenter with the right number of classes and their names."""
        from transformers import AutoModelForSemanticSegmentation

        from taskrecipe.core.vision.norms import keep_statistics

        model: torch.nn.Module = source.model(
            AutoModelForSemanticSegmentation,
            id2label=dict(enumerate(self.labels)),
            semantic_loss_ignore_index=IGNORED,
        )
        keep_statistics(model)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        """How many pixels have a class."""
        return {"loss": float((batch["labels"] != IGNORED).sum())}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """The model's own loss, and its map at the size of the picture."""
        from torch.nn.functional import interpolate

        outputs = model(**batch)
        size = batch["labels"].shape[-2:]
        return Loss({"loss": outputs.loss}, interpolate(outputs.logits, size=size, mode="bilinear").argmax(1))

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """How often each class is taken for each: one small table, added up."""
        count = len(self.labels)
        counted = batch["labels"] != IGNORED
        pairs = batch["labels"][counted] * count + outputs[counted]
        return {"confusion": Total(pairs.bincount(minlength=count * count).reshape(count, count))}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """Overlap by class, its mean over those that occur, and the share of right pixels."""
        confusion = np.asarray(predictions["confusion"])
        right = np.diag(confusion)
        either = confusion.sum(0) + confusion.sum(1) - right
        occurs = either > 0
        overlap = right[occurs] / either[occurs]
        named = zip(np.array(self.labels)[occurs], overlap, strict=True)
        by_class = {f"iou_{name}": float(value) for name, value in named}
        accuracy = float(right.sum() / max(confusion.sum(), 1))
        return {"mean_iou": float(overlap.mean()), "pixel_accuracy": accuracy, **by_class}

    def _map(self, source: Any) -> NDArray[np.uint8]:
        """The class of every pixel, by our numbers."""
        from PIL import Image

        with Image.open(source["path"] or io.BytesIO(source["bytes"]), formats=("PNG", "BMP", "TIFF")) as image:
            classes = np.array(image)
        if classes.ndim != 2 or classes.dtype.kind not in "bu":
            raise DataError(f"a map of classes has one number a pixel; this is a {image.mode} picture")
        classes = classes.astype(np.int64)
        ignored = classes == self.options.ignore_index
        if self.options.reduce_labels:
            ignored |= classes == 0
            classes = classes - 1
        classes[ignored] = IGNORED
        return classes.clip(0, 65535).astype(np.uint8) if classes.max(initial=0) <= 255 else classes.astype(np.uint16)

    def _check_maps(self, rows: Dataset, split: str) -> int:
        """The highest class that occurs; what can't be trained on is refused."""
        from taskrecipe.core.data.images import size, undecoded

        highest, known = -1, len(self.options.labels or range(IGNORED))
        rows = undecoded(undecoded(rows), "annotation")
        for number, (image, annotation) in enumerate(zip(rows["image"], rows["annotation"], strict=True)):
            try:
                classes = self._map(annotation)
                width, height = size(image)
            except (DataError, OSError, ValueError) as error:
                raise DataError(f"{error}", split=split, row=number, column="annotation") from None
            if classes.shape not in ((height, width), (width, height)):
                found = f"{classes.shape[1]}×{classes.shape[0]}"
                message = f"the map is {found} pixels, its picture {width}×{height}"
                raise DataError(message, split=split, row=number, column="annotation")
            used = int(np.where(classes == IGNORED, -1, classes.astype(np.int64)).max(initial=-1))
            if used >= known:
                message = f"class {used} has no name; [task].labels has {known}"
                raise DataError(message, split=split, row=number, column="annotation")
            highest = max(highest, used)
        return highest


def _drawn(count: int, seed: tuple[int, int]) -> Dataset:
    from datasets import Dataset, Features, Image
    from PIL import Image as Pictures

    from taskrecipe.core.vision.shapes import draw

    random = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {"image": [], "annotation": []}
    for _ in range(count):
        picture, buffer = draw(random, SAMPLE_SIZE, fewest=1), io.BytesIO()
        Pictures.fromarray(picture.class_map).save(buffer, format="PNG")
        rows["image"].append({"bytes": picture.png(), "path": None})
        rows["annotation"].append({"bytes": buffer.getvalue(), "path": None})
    return Dataset.from_dict(rows, features=Features({"image": Image(), "annotation": Image()}))
