"""Object detection: boxes with a class each, by any DETR-like model."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from taskrecipe import Batch, Column, Predictions, Row, Splits
from taskrecipe.vision import NO_CLASS, Format, ObjectOptions, ObjectRecipe, Scene, as_boxes, detection_losses

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from taskrecipe import DescribedImage, ModelSource
    from taskrecipe.vision import ObjectReader

SAMPLE_SIZE = 64
"""Side of a sample image in pixels."""


class DetectionOptions(ObjectOptions):
    """Options of `detection`."""

    boxes: Format = Field(
        default="coco",
        description="How boxes are written in a data set from the hub: 'coco' (x, y, width, height) and 'voc' (left, "
        "top, right, bottom) in pixels; 'yolo' (center x, center y, width, height) and 'albumentations' (left, top, "
        "right, bottom) as shares of the image. The format of COCO and VOC files is known: leave 'coco'.",
    )
    invalid_boxes: Literal["error", "repair"] = Field(
        default="error",
        description="What happens to boxes without an area or beyond their image: 'error' stops and names the row; "
        "'repair' cuts off what is outside, leaves out boxes without an area, and warns how many there were.",
    )
    freeze_batch_norm: bool = Field(
        default=True,
        description="Keep the statistics that batch norm layers come with. If false, models with such layers (RT-DETR) "
        "normalize over each micro-batch, so that accumulation changes results; training from scratch may need it.",
    )


class Detection(ObjectRecipe):
    """Object detection with DETR, Conditional, Deformable and DAB-DETR, RT-DETR, LW-DETR, RF-DETR or YOLOS.

    Data is COCO json or Pascal VOC in [data.files], with the folder of images in [data].images; or a hub data set
    with a column `objects` of `bbox` and `category`. Images without boxes are trained on too: they show where nothing
    is. Boxes that stand for a crowd are left out in training, and in evaluation neither count as found nor as missed.
    Images that a camera stored on their side are turned upright, together with their boxes. The metric is COCO's
    average precision, over all classes and for each.
    """

    Options = DetectionOptions
    options: DetectionOptions
    shape = "bbox"
    sample_settings: ClassVar = {
        "task.image_size": SAMPLE_SIZE,
        "task.fit": "stretch",
        "train.epochs": 20,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "train.learning_rate": 1e-3,
        "schedule.warmup": 50,
        "evaluate.every": 200,
        "checkpoint.every": 200,
    }

    @override
    def columns(self) -> dict[str, Column]:
        objects = Column("bbox and category of each object; area and iscrowd if known", target=True)
        return {**super().columns(), "objects": objects}

    # Rows -------------------------------------------------------------------------------------------

    @override
    def sample(self, folder: Path) -> Splits:
        """Draw colored shapes on textured ground, and write a small Deformable DETR that can find them."""
        from taskrecipe.vision import make_sample_splits

        _write_tiny_detector(folder)
        return make_sample_splits({"train": 640, "validation": 160}, SAMPLE_SIZE, self.spec.seed)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        """Load the model's image processor, unless the model's loss can't be accumulated exactly."""
        self.config: Any = source.config()  # rows can be counted before there is a model
        detection_losses.require_exact_loss(self.config)
        return super().load_processor(source)

    @override
    def reader(self) -> ObjectReader:
        from taskrecipe.vision import ObjectReader

        return ObjectReader(self.labels, self.options.boxes, self.options.invalid_boxes)

    @override
    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Decode an image, vary it in training, and scale it. Boxes become shares of the image, without padding."""
        from taskrecipe.data import open_rgb
        from taskrecipe.vision import to_centers

        scene = _make_scene(open_rgb(row["image"])[0], row)
        if training:
            scene = self.options.augment.apply(scene, random)
        seen = self.processor(scene.image)
        boxes = to_centers(scene.boxes, scene.image.size).astype(np.float32)
        return {
            "pixel_values": np.asarray(seen["pixel_values"][0]),
            **({"pixel_mask": np.asarray(seen["pixel_mask"][0], dtype=bool)} if "pixel_mask" in seen else {}),
            **({"boxes": boxes, "classes": scene.labels} if "boxes" in row else {}),
            **({} if training else {"size": np.array([row["height"], row["width"]])}),
        }

    # Model ------------------------------------------------------------------------------------------

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForObjectDetection

        model: torch.nn.Module = source.model(AutoModelForObjectDetection, id2label=dict(enumerate(self.labels)))
        detection_losses.use_exact_loss(model)
        self.config = model.config
        self.takes_mask = "pixel_mask" in inspect.signature(model.forward).parameters
        self._freeze_batch_norms(model)
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the model. It computes its loss too if there are labels, which change nothing else in evaluation."""
        mask = {"pixel_mask": batch["pixel_mask"]} if self.takes_mask and "pixel_mask" in batch else {}
        labels = {"labels": _make_targets(batch)} if "classes" in batch else {}
        return model(pixel_values=batch["pixel_values"], **labels, **mask)

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return detection_losses.loss_counts(self.config, (batch["classes"] != NO_CLASS).sum(1).tolist())

    @override
    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        terms: dict[str, torch.Tensor] = outputs.loss_dict
        return terms

    # Answers ----------------------------------------------------------------------------------------

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        """Return the boxes with the highest scores, in pixels of the whole image."""
        from taskrecipe.vision import MOST_PREDICTIONS, to_sizes

        found = self.processor.post_process_object_detection(outputs, threshold=-1.0, target_sizes=batch["size"])
        best = [image["scores"].argsort(descending=True, stable=True)[:MOST_PREDICTIONS] for image in found]
        kept = [
            {key: values[order].cpu().numpy() for key, values in image.items()}
            for image, order in zip(found, best, strict=True)
        ]
        return {
            "shapes": [to_sizes(image["boxes"]) for image in kept],
            "labels": [image["labels"] for image in kept],
            "scores": [image["scores"] for image in kept],
        }

    @override
    def true_objects(self, row: Row) -> dict[str, Any]:
        from taskrecipe.vision import to_sizes

        return {"shapes": to_sizes(as_boxes(row["boxes"])), **{key: row[key] for key in ("labels", "areas", "crowds")}}

    @override
    def describe(self, example: Row) -> DescribedImage:
        from taskrecipe import Shape
        from taskrecipe.vision import describe_objects, from_centers

        boxes = from_centers(as_boxes(example.get("boxes", [])), _visible_size(example))
        labels = [self.labels[label] for label in example.get("classes", [])]
        shapes = [Shape(label, box=tuple(box)) for label, box in zip(labels, boxes.tolist(), strict=True)]
        return describe_objects(example["pixel_values"], self.processor, shapes)

    def _freeze_batch_norms(self, model: torch.nn.Module) -> None:
        from taskrecipe.vision import find_batch_norms, freeze_batch_norm

        is_whole = self.spec.train.accumulate == 1 and self.spec.launch.processes == 1
        if self.options.freeze_batch_norm:
            freeze_batch_norm(model)
        elif not is_whole and any(find_batch_norms(model)):
            warnings.warn(
                f"{self.config.model_type} has batch norm layers, which normalize each micro-batch of an update "
                "separately: results depend on how it is split; [task].freeze_batch_norm = true prevents that",
                stacklevel=2,
            )


def _make_scene(image: Image, row: Row) -> Scene:
    """Return the image with its objects, if the row has any. A crowd is no object."""
    if "boxes" not in row:
        return Scene(image)
    single = ~np.array(row["crowds"], dtype=bool)
    return Scene(image, np.array(row["labels"], dtype=np.int64)[single], as_boxes(row["boxes"])[single])


def _make_targets(batch: Batch) -> list[dict[str, torch.Tensor]]:
    there = batch["classes"] != NO_CLASS
    return [
        {"class_labels": classes[known], "boxes": boxes[known]}
        for classes, boxes, known in zip(batch["classes"], batch["boxes"], there, strict=True)
    ]


def _visible_size(example: Row) -> tuple[int, int]:
    """Return width and height of the part of the square that is not padding."""
    if "pixel_mask" not in example:
        height, width = example["pixel_values"].shape[-2:]
        return width, height
    mask = example["pixel_mask"]
    return int(mask[0].sum()), int(mask[:, 0].sum())


def _write_tiny_detector(folder: Path) -> None:
    """Write a Deformable DETR on a shallow ResNet: 180,000 weights are enough for the sample."""
    from transformers import DeformableDetrConfig
    from transformers.models.deformable_detr.image_processing_pil_deformable_detr import (
        DeformableDetrImageProcessorPil,
    )

    DeformableDetrConfig(
        backbone_config={
            "model_type": "resnet",
            "layer_type": "basic",
            "embedding_size": 16,
            "hidden_sizes": [24, 48],
            "depths": [1, 1],
            "out_features": ["stage2"],
        },
        num_feature_levels=1,
        d_model=64,
        encoder_layers=1,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=128,
        num_queries=10,
        dropout=0.0,
        with_box_refine=True,
        auxiliary_loss=True,
    ).save_pretrained(folder)
    DeformableDetrImageProcessorPil().save_pretrained(folder)
