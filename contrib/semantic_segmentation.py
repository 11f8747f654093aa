"""Semantic segmentation: the class of every pixel."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from taskrecipe import (
    Batch,
    Column,
    DataError,
    Direction,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    TaskOptions,
    Text,
)
from taskrecipe.vision import Augment, Scene

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from PIL.Image import Image

    from taskrecipe import DescribedImage, ModelSource
    from taskrecipe.data import Orientation

SAMPLE_SIZE = 64
"""Side of a sample image in pixels."""

IGNORED = 255
"""The number of pixels without a class; transformers' models leave them out of their loss."""

ClassMap = NDArray[np.uint8]
"""(height, width): the class of every pixel, or `IGNORED`."""


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
    augment: Augment = Field(default=Augment(crop=0.5), description="How training images are varied.")


class SemanticSegmentation(Recipe):
    """Semantic segmentation with any model of AutoModelForSemanticSegmentation (SegFormer, BEiT, DPT, …).

    Each image has a map of its size whose pixels are class numbers. `mean_iou` over the classes that occur and the
    share of right pixels are measured at the size that the model sees. Batch norms keep the statistics they come
    with: statistics of batches would make an update depend on how it is split.
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

    @override
    def metrics(self) -> dict[str, Direction]:
        return {"mean_iou": "max", "pixel_accuracy": "max"}

    @override
    def columns(self) -> dict[str, Column]:
        annotation = Column("an image whose pixels are class numbers", target=True)
        return {"image": Column("an image"), "annotation": annotation}

    @override
    def sample(self, folder: Path) -> Splits:
        """Colored shapes on textured ground, and a small SegFormer."""
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
        return {name: _sample_split(count, (self.spec.seed, i)) for i, (name, count) in enumerate(sizes.items())}

    @override
    def learn(self, rows: Dataset) -> None:
        """Take the classes from `[task].labels`, or number them up to the highest class of the training maps."""
        from taskrecipe.data import read_image_rows

        if self.options.labels:
            self.labels = self.options.labels
            return
        highest = max(read_image_rows(rows, "train", "annotation", self._highest_class))
        if not 1 <= highest < IGNORED:
            message = f"the highest class of the maps is {highest}; there must be 2 to {IGNORED} classes, from 0 on"
            raise DataError(message, split="train", column="annotation")
        self.labels = [str(number) for number in range(highest + 1)]

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_images, read_image_rows

        check_images(rows, split)
        if "annotation" in rows.column_names:
            read_image_rows(rows, split, ["image", "annotation"], self._check_map)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.vision import load_sized_processor

        return load_sized_processor(source)

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Keep images and maps encoded: they are decoded when they are needed."""
        from taskrecipe.data import keep_encoded

        present = [name for name in self.columns() if name in rows.column_names]
        made = rows.select_columns(present)
        for name in present:
            made = keep_encoded(made, name)
        return made

    @override
    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        from taskrecipe.data import open_rgb

        image, orientation = open_rgb(row["image"])
        class_map = self._read_upright_map(row["annotation"], orientation) if "annotation" in row else None
        scene = Scene(image, class_map=class_map, outside=IGNORED)
        scene = self.options.augment.apply(scene, random) if training else scene
        pixels = np.asarray(self.processor(scene.image)["pixel_values"][0])
        if scene.class_map is None:
            return {"pixel_values": pixels}
        return {"pixel_values": pixels, "labels": _resize_map(scene.class_map, pixels.shape[-2:]).astype(np.int64)}

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForSemanticSegmentation

        from taskrecipe.vision import freeze_batch_norm

        model: torch.nn.Module = source.model(
            AutoModelForSemanticSegmentation,
            id2label=dict(enumerate(self.labels)),
            semantic_loss_ignore_index=IGNORED,
        )
        freeze_batch_norm(model)
        return model

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float((batch["labels"] != IGNORED).sum())}

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        """Return each row's map as a PNG file: maps of a whole split would fill the memory otherwise."""
        from torch.nn.functional import interpolate

        logits = interpolate(outputs.logits, size=batch["pixel_values"].shape[-2:], mode="bilinear")
        return {"map": [_encode_map(classes) for classes in logits.argmax(1).byte().cpu().numpy()]}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        return self._score_counts(sum(self._count_rows(predictions, rows)))

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        counts = np.stack(list(self._count_rows(predictions, rows)))

        def score(chosen: NDArray[Any]) -> dict[str, float]:
            times = np.bincount(chosen, minlength=len(counts))
            return self._score_counts(np.tensordot(times, counts, 1))

        return score

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        """Return the right map, at the size of the predicted one, with the share of each class."""
        if "annotation" not in row:
            return Judgment()
        from taskrecipe.data import check_image

        width, height = check_image(row["image"]).size
        return Judgment(self._describe_map(self._read_right_map(row, (height, width))))

    @override
    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        from torch.nn.functional import interpolate

        from taskrecipe import IGNORED as NOT_COUNTED
        from taskrecipe import label_losses

        logits = interpolate(outputs.logits, size=batch["labels"].shape[-2:], mode="bilinear", align_corners=False)
        labels = batch["labels"]
        return label_losses(logits.movedim(1, -1), labels.masked_fill(labels == IGNORED, NOT_COUNTED))

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        """Return the share of pixels of each class that occurs, and its mask as run lengths at the image's size."""
        from taskrecipe.data import check_image

        return self._describe_map(self._full_map(prediction, check_image(row["image"]).size))

    @override
    def answer_images(self, prediction: Row, row: Row) -> dict[str, Image]:
        """Return the map, whose pixels are class numbers, and the image with the classes drawn over it."""
        from taskrecipe import Shape
        from taskrecipe.data import open_rgb
        from taskrecipe.vision import color_map, draw_shapes

        image = open_rgb(row["image"])[0]
        class_map = self._full_map(prediction, image.size)
        shapes = [Shape(self.labels[number], mask=class_map == number) for number in np.unique(class_map)]
        return {"map": color_map(class_map), "overlay": draw_shapes(image, shapes, self.labels)}

    def _full_map(self, prediction: Row, size: tuple[int, int]) -> ClassMap:
        """Return the predicted map at the size of the upright image."""
        return _resize_map(_decode_map(prediction["map"]), (size[1], size[0]))

    @override
    def describe(self, example: Row) -> DescribedImage:
        from taskrecipe import Shape
        from taskrecipe.vision import describe_pixels

        labels = np.asarray(example.get("labels", []))
        present = [number for number in np.unique(labels) if number != IGNORED]
        shapes = [Shape(self.labels[int(number)], mask=labels == number) for number in present]
        shares = ", ".join(f"{shape.label} {shape.mask.mean():.0%}" for shape in shapes)
        return describe_pixels(example["pixel_values"], self.processor, shapes, {"classes": shares} if shares else {})

    # Maps -------------------------------------------------------------------------------------------

    def _count_rows(self, predictions: Predictions, rows: Dataset) -> Iterator[NDArray[np.int64]]:
        """Yield for each row how many pixels of each class are right, are there, and were predicted."""
        count = len(self.labels)
        for encoded, row in zip(predictions["map"], rows, strict=True):
            predicted = _decode_map(encoded)
            right = self._read_right_map(row, predicted.shape)
            counted = right != IGNORED
            there, found = right[counted], predicted[counted]
            yield np.stack([np.bincount(part, minlength=count) for part in (there[there == found], there, found)])

    def _score_counts(self, counts: Any) -> dict[str, float]:
        right, there, found = counts
        either = there + found - right
        occurs = either > 0
        overlap = right[occurs] / either[occurs]
        named = zip(np.array(self.labels)[occurs], overlap, strict=True)
        by_class = {f"iou_{name}": float(value) for name, value in named}
        mean = float(overlap.mean()) if overlap.size else math.nan
        return {"mean_iou": mean, "pixel_accuracy": float(right.sum() / max(there.sum(), 1)), **by_class}

    def _read_right_map(self, row: Row, size: tuple[int, ...]) -> ClassMap:
        """Return the right map of a row at a size."""
        from taskrecipe.data import check_image

        return _resize_map(self._read_upright_map(row["annotation"], check_image(row["image"])), size)

    def _describe_map(self, class_map: NDArray[Any]) -> Row:
        """Return the share of pixels of each class that occurs, and its mask as run lengths."""
        from taskrecipe.vision import pack_masks

        numbers, counts = np.unique(class_map[class_map != IGNORED], return_counts=True)
        names, masks = [self.labels[number] for number in numbers], pack_masks(class_map == numbers[:, None, None])
        shares = (counts / counts.sum()).tolist()
        return {"classes": dict(zip(names, shares, strict=True)), "masks": dict(zip(names, masks, strict=True))}

    def _read_classes(self, source: Any) -> NDArray[np.int64]:
        """Read the class of every pixel, -1 for those that are left out."""
        from taskrecipe.data import open_class_map

        if source is None:
            raise DataError("there is no map")
        classes = open_class_map(source).astype(np.int64)
        ignored = classes == self.options.ignore_index
        if self.options.reduce_labels:
            classes = classes - 1  # class 0 becomes -1 by this
        classes[ignored] = -1
        return classes

    def _read_upright_map(self, source: Any, orientation: Orientation) -> ClassMap:
        """Read a map and turn it with its image, unless its shape shows that it is upright already."""
        classes = self._read_classes(source)
        class_map = np.where(classes < 0, IGNORED, classes).astype(np.uint8)
        as_stored = class_map.shape == (orientation.height, orientation.width)
        return orientation.turn_maps(class_map) if as_stored else class_map

    def _highest_class(self, row: Row) -> int:
        return int(self._read_classes(row["annotation"]).max(initial=-1))

    def _check_map(self, row: Row) -> None:
        """Refuse a map that is not of its image's size, or that has a class without a name."""
        from taskrecipe.data import check_image

        classes, orientation = self._read_classes(row["annotation"]), check_image(row["image"])
        height, width = classes.shape
        if (width, height) not in ((orientation.width, orientation.height), orientation.size):
            image = f"{orientation.width}×{orientation.height}"
            raise DataError(f"the map has {width}×{height} pixels, but its image has {image}")
        highest, known = int(classes.max(initial=-1)), len(self.labels)
        if highest >= known and self.options.labels:
            raise DataError(f"class {highest} has no name; [task].labels has {known}")
        if highest >= known:
            raise DataError(f"class {highest} is not among the classes of the training rows, 0 to {known - 1}")


def _resize_map(class_map: ClassMap, size: tuple[int, ...]) -> ClassMap:
    """Resize a map to (height, width)."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(class_map))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.NEAREST))


def _encode_map(class_map: ClassMap) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(class_map).save(buffer, format="PNG")
    return buffer.getvalue()


def _decode_map(encoded: bytes) -> ClassMap:
    from taskrecipe.data import open_class_map

    return open_class_map(encoded)


def _sample_split(count: int, seed: tuple[int, int]) -> Dataset:
    from datasets import Dataset, Features, Image

    from taskrecipe.vision import draw_image

    random = np.random.default_rng(seed)
    drawn = [draw_image(random, SAMPLE_SIZE, fewest=1) for _ in range(count)]
    rows = {
        "image": [{"bytes": image.png(), "path": None} for image in drawn],
        "annotation": [{"bytes": _encode_map(image.class_map), "path": None} for image in drawn],
    }
    return Dataset.from_dict(rows, features=Features({"image": Image(), "annotation": Image()}))
