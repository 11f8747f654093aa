"""Object detection: boxes with a class each, by any DETR-like model."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from taskrecipe.core.recipe import Batch, Column, Loss, Row, Splits
from taskrecipe.core.vision.augment import Scene
from taskrecipe.core.vision.boxes import Format, as_boxes
from taskrecipe.core.vision.object_recipe import NO_CLASS, ObjectOptions, ObjectRecipe

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from PIL.Image import Image

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.vision.objects import ObjectReader

SAMPLE_SIZE = 64
"""Side of a sample picture in pixels."""


class DetectionOptions(ObjectOptions):
    """Options of `detection`."""

    boxes: Format = Field(
        default="coco",
        description="How boxes are written in a data set from the hub: 'coco' (x, y, width, height) and 'voc' (left, "
        "top, right, bottom) in pixels; 'yolo' (centre x, centre y, width, height) and 'albumentations' (left, top, "
        "right, bottom) as shares of the picture. COCO and VOC files are read as what they are: leave 'coco'.",
    )
    invalid_boxes: Literal["error", "repair"] = Field(
        default="error",
        description="What becomes of boxes without an area or beyond their picture: stop and name the row; or cut off "
        "what is outside, leave out what has no area, and say how many there were.",
    )
    freeze_batch_norm: bool = Field(
        default=True,
        description="Keep the statistics that batch norm layers come with. Where not, models that have such (RT-DETR) "
        "normalise over each micro-batch, which training them from scratch may want, and accumulation changes results.",
    )


class Detection(ObjectRecipe):
    """Object detection with DETR, Conditional, Deformable and DAB-DETR, RT-DETR, LW-DETR, RF-DETR or YOLOS.

    Data is COCO json or Pascal VOC in [data.files], with the folder of pictures in [data].images; or a hub data set
    with a column `objects` of `bbox` and `category`. Pictures without boxes train too: they say where nothing is.
    Boxes that stand for a crowd are left out in training, and in evaluation neither count as found nor as missed.
    Pictures that a camera stored on their side are set upright, and their boxes with them. Measured by COCO's average
    precision, over all classes and for each.
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

    def columns(self) -> dict[str, Column]:
        """A picture and what is in it."""
        return {**super().columns(), "objects": Column("bbox and category of each object; area and iscrowd if known")}

    # Data -------------------------------------------------------------------------------------------

    def sample(self, folder: Path) -> Splits:
        """Coloured shapes on textured ground, and a small Deformable DETR that finds them."""
        from taskrecipe.core.vision.shapes import sample_splits

        _write_tiny_detector(folder)
        return sample_splits({"train": 640, "validation": 160}, SAMPLE_SIZE, self.spec.seed)

    def load_processor(self, source: ModelSource) -> Any:
        """The model's image processor, once it is known that its loss accumulates exactly."""
        from taskrecipe.core.vision.criteria import require_exact_loss

        require_exact_loss(source.config())
        return super().load_processor(source)

    def reader(self) -> ObjectReader:
        """Objects are read by their boxes."""
        from taskrecipe.core.vision.objects import ObjectReader

        return ObjectReader(self.labels, self.options.boxes, self.options.invalid_boxes)

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Decode a picture, vary it in training, and scale it; boxes as shares of what is seen."""
        from taskrecipe.core.data.images import open_rgb
        from taskrecipe.core.vision.boxes import to_centres

        scene = _scene(open_rgb(row["image"])[0], row)
        if training:
            scene = self.options.augment.apply(scene, random)
        seen = self.processor(scene.image)
        return {
            "pixel_values": np.asarray(seen["pixel_values"][0]),
            **({"pixel_mask": np.asarray(seen["pixel_mask"][0], dtype=bool)} if "pixel_mask" in seen else {}),
            "boxes": to_centres(scene.boxes, scene.image.size).astype(np.float32),
            "classes": scene.labels,
            **({} if training else {"size": np.array([row["height"], row["width"]])}),
        }

    # Model ------------------------------------------------------------------------------------------

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A detector with the right classes, and with a loss that accumulates exactly."""
        from transformers import AutoModelForObjectDetection

        from taskrecipe.core.vision.criteria import use_exact_loss

        model = source.model(AutoModelForObjectDetection, id2label=dict(enumerate(self.labels)))
        use_exact_loss(model)
        self.config = model.config
        self.masked = "pixel_mask" in inspect.signature(model.forward).parameters
        self._settle_batch_norms(model)
        return model  # type: ignore[no-any-return]

    def weights(self, batch: Batch) -> dict[str, float]:
        """How many boxes, or weighted queries, each term is a mean over."""
        from taskrecipe.core.vision.criteria import weights

        return weights(self.config, (batch["classes"] != NO_CLASS).sum(1).tolist())

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """The model's own losses of class, box and overlap, each under its own name."""
        there = batch["classes"] != NO_CLASS
        targets = [
            {"class_labels": classes[known], "boxes": boxes[known]}
            for classes, boxes, known in zip(batch["classes"], batch["boxes"], there, strict=True)
        ]
        mask = {"pixel_mask": batch["pixel_mask"]} if self.masked and "pixel_mask" in batch else {}
        outputs = model(pixel_values=batch["pixel_values"], labels=targets, **mask)
        return Loss(outputs.loss_dict, outputs)

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The surest boxes of each picture, in pixels of the whole picture."""
        from taskrecipe.core.vision.average_precision import MOST
        from taskrecipe.core.vision.boxes import to_sizes

        found = self.processor.post_process_object_detection(outputs, threshold=-1.0, target_sizes=batch["size"])
        best = [image["scores"].argsort(descending=True, stable=True)[:MOST] for image in found]
        kept = [
            {key: values[order].cpu().numpy() for key, values in image.items()}
            for image, order in zip(found, best, strict=True)
        ]
        return {
            "shapes": [to_sizes(image["boxes"]) for image in kept],
            "labels": [image["labels"] for image in kept],
            "scores": [image["scores"] for image in kept],
        }

    def truth(self, rows: Dataset) -> list[dict[str, Any]]:
        """The boxes of each row, as COCO has them."""
        from taskrecipe.core.vision.boxes import to_sizes

        columns = rows.select_columns(["boxes", "labels", "areas", "crowds"])
        return [{"shapes": to_sizes(as_boxes(row.pop("boxes"))), **row} for row in columns]

    def _settle_batch_norms(self, model: torch.nn.Module) -> None:
        from taskrecipe.core.vision.norms import batch_norms, keep_statistics

        parts = self.spec.train.accumulate * self.spec.launch.processes
        if self.options.freeze_batch_norm:
            keep_statistics(model)
        elif parts > 1 and any(batch_norms(model)):
            warnings.warn(
                f"{self.config.model_type} has batch norm layers, which see each of the {parts} parts of an update by "
                "itself: results depend on how it is cut; [task].freeze_batch_norm = true prevents that",
                stacklevel=2,
            )


def _scene(image: Image, row: Row) -> Scene:
    """What training may see of a row: a crowd is no object."""
    single = ~np.array(row["crowds"], dtype=bool)
    return Scene(image, np.array(row["labels"], dtype=np.int64)[single], as_boxes(row["boxes"])[single])


def _write_tiny_detector(folder: Path) -> None:
    """A Deformable DETR on a shallow ResNet, of which 180,000 weights are enough for the sample."""
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
