"""Instance segmentation: every object's class and the pixels that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from taskrecipe.core.recipe import Batch, Column, Loss, Row, Splits
from taskrecipe.core.vision.augment import Scene
from taskrecipe.core.vision.object_recipe import NO_CLASS, ObjectOptions, ObjectRecipe

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.vision.mask_criteria import Target
    from taskrecipe.core.vision.masks import OutlineReader

SAMPLE_SIZE = 64
"""Side of a sample picture in pixels."""


class InstanceSegmentationOptions(ObjectOptions):
    """Options of `instance_segmentation`."""

    invalid_masks: Literal["error", "repair"] = Field(
        default="error",
        description="What becomes of outlines that are missing, cover no pixel or reach beyond their picture: stop and "
        "name the row; or leave out such objects, cut off what is outside, and say how many there were.",
    )
    image_size: int = Field(
        default=384, ge=32, le=4096, description="Side in pixels of the square that pictures are scaled to."
    )


class InstanceSegmentation(ObjectRecipe):
    """Instance segmentation with Mask2Former or MaskFormer.

    Data is COCO json in [data.files], with the folder of pictures in [data].images; or a hub data set with a column
    `objects` of `category` and `segmentation`: polygons or run lengths, as COCO has them. Pictures without objects
    train too. What stands for a crowd is left out in training, and in evaluation neither counts as found nor as
    missed. Pictures that a camera stored on their side are set upright, and their masks with them. Measured by COCO's
    average precision of masks, at the pictures' own size. Statistics of batches would make an update depend on how it
    is split, so batch norms keep those they come with; and the points at which Mask2Former compares masks are drawn
    for each picture by itself.
    """

    Options = InstanceSegmentationOptions
    options: InstanceSegmentationOptions
    shape = "segm"
    sample_settings: ClassVar = {
        "task.image_size": SAMPLE_SIZE,
        "task.fit": "stretch",
        "train.epochs": 14,
        "train.batch_size": 8,
        "train.accumulate": 1,
        "train.learning_rate": 2e-3,
        "schedule.warmup": 20,
    }

    def columns(self) -> dict[str, Column]:
        """A picture and what is in it."""
        objects = Column("category and segmentation of each object; area and iscrowd if known")
        return {**super().columns(), "objects": objects}

    # Data -------------------------------------------------------------------------------------------

    def sample(self, folder: Path) -> Splits:
        """Coloured shapes on textured ground, and a small Mask2Former that finds them."""
        from taskrecipe.core.vision.shapes import sample_splits

        _write_tiny_segmenter(folder)
        return sample_splits({"train": 320, "validation": 80}, SAMPLE_SIZE, self.spec.seed)

    def load_processor(self, source: ModelSource) -> Any:
        """The model's image processor, once it is known that its loss accumulates exactly."""
        from taskrecipe.core.vision.mask_criteria import require_exact_loss

        require_exact_loss(source.config())
        return super().load_processor(source)

    def reader(self) -> OutlineReader:
        """Objects are read by their outlines."""
        from taskrecipe.core.vision.masks import OutlineReader

        return OutlineReader(self.labels, invalid=self.options.invalid_masks)

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Decode a picture, vary it in training, and scale it and its masks; small ones may vanish."""
        scene = _scene(row)
        if training:
            scene = self.options.augment.apply(scene, random)
        pictures = self.processor(scene.image)
        pixels, inside = np.asarray(pictures["pixel_values"][0]), np.asarray(pictures["pixel_mask"][0])
        masks = _masks_inside(scene, inside)
        visible = masks.any((1, 2))
        sizes = {
            "seen": np.array([inside[:, 0].sum(), inside[0].sum()]),
            "size": np.array([row["height"], row["width"]]),
        }
        return {
            "pixel_values": pixels,
            "masks": masks[visible],
            "classes": scene.labels[visible],
            "points": random.integers(2**63 - 1),
            **({} if training else sizes),
        }

    # Model ------------------------------------------------------------------------------------------

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A segmenter with the right classes."""
        from transformers import AutoModelForUniversalSegmentation

        from taskrecipe.core.vision.norms import keep_statistics

        model: torch.nn.Module = source.model(AutoModelForUniversalSegmentation, id2label=dict(enumerate(self.labels)))
        keep_statistics(model)
        self.config: Any = model.config
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        """How many masks, or weighted queries, each term is a mean over."""
        from taskrecipe.core.vision.mask_criteria import weights

        return weights(self.config, (batch["classes"] != NO_CLASS).sum(1).tolist())

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """The model's own losses of class, pixels and overlap, each under its own name."""
        from taskrecipe.core.vision.mask_criteria import terms

        outputs = model(
            pixel_values=batch["pixel_values"],
            output_auxiliary_logits=True,
            output_hidden_states=self.config.use_auxiliary_loss,  # of which MaskFormer makes its auxiliary logits
        )
        return Loss(terms(self.config, outputs, _targets(batch)), outputs)

    # Evaluation -------------------------------------------------------------------------------------

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The surest masks of each picture, at the size of the whole picture."""
        square = batch["pixel_values"].shape[-2:]
        pictures = zip(
            outputs.class_queries_logits, outputs.masks_queries_logits, batch["seen"], batch["size"], strict=True
        )
        found = [
            _surest(classes, _at_size(masks, square, seen.tolist(), size.tolist()))
            for classes, masks, seen, size in pictures
        ]
        return {key: [picture[key] for picture in found] for key in found[0]}

    def truth(self, rows: Dataset) -> list[dict[str, Any]]:
        """The masks of each row, as COCO has them."""
        return list(rows.select_columns(["masks", "labels", "areas", "crowds"]).rename_column("masks", "shapes"))


def _scene(row: Row) -> Scene:
    """What may be seen of a row: a crowd is no object."""
    from taskrecipe.core.data.images import open_rgb
    from taskrecipe.core.vision.boxes import as_boxes
    from taskrecipe.core.vision.masks import unpack

    single = np.flatnonzero(~np.array(row["crowds"], dtype=bool))
    return Scene(
        open_rgb(row["image"])[0],
        np.array(row["labels"], dtype=np.int64)[single],
        as_boxes(row["boxes"])[single],
        unpack([row["masks"][number] for number in single], (row["width"], row["height"])),
    )


def _masks_inside(scene: Scene, inside: NDArray[Any]) -> NDArray[np.bool_]:
    """The scene's masks where the model sees it: in the upper left of a square, the part that is `inside`."""
    from taskrecipe.core.vision.masks import scaled

    height, width = int(inside[:, 0].sum()), int(inside[0].sum())
    masks = np.zeros((len(scene.labels), *inside.shape), dtype=bool)
    if scene.masks is not None:
        masks[:, :height, :width] = scaled(scene.masks, (width, height))
    return masks


def _targets(batch: Batch) -> list[Target]:
    from taskrecipe.core.vision.mask_criteria import Target

    there = batch["classes"] != NO_CLASS
    return [
        Target(classes[known], masks[known], seed)
        for classes, masks, known, seed in zip(
            batch["classes"], batch["masks"], there, batch["points"].tolist(), strict=True
        )
    ]


def _at_size(masks: torch.Tensor, square: Sequence[int], seen: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """Predicted masks (n, height, width) of a square, at the `size` of the picture that `seen` of it shows."""
    from torch.nn.functional import interpolate

    from taskrecipe.core.vision.criteria import full

    whole = interpolate(full(masks)[None], size=list(square), mode="bilinear", align_corners=False)
    part = whole[..., : seen[0], : seen[1]]
    return interpolate(part, size=list(size), mode="bilinear", align_corners=False)[0]


def _surest(classes: torch.Tensor, masks: torch.Tensor) -> dict[str, Any]:
    """The likeliest pairs of a class and a mask, as likely as the class is and the pixels of the mask on average."""
    from taskrecipe.core.vision.average_precision import MOST
    from taskrecipe.core.vision.criteria import full
    from taskrecipe.core.vision.masks import packed

    inside = masks > 0
    pixels = inside.sum((1, 2))
    certainty = (masks.sigmoid() * inside).sum((1, 2)) / pixels.clamp(min=1)  # 0 where there is no pixel
    scores = full(classes).softmax(-1)[:, :-1] * certainty[:, None]
    order = scores.flatten().argsort(descending=True, stable=True)[:MOST]
    order = order[scores.flatten()[order] > 0]
    queries, labels = order // scores.shape[1], order % scores.shape[1]
    runs = packed(inside.cpu().numpy())
    return {
        "shapes": [runs[query] for query in queries.tolist()],
        "labels": labels.cpu().numpy(),
        "scores": scores.flatten()[order].cpu().numpy(),
    }


def _write_tiny_segmenter(folder: Path) -> None:
    """A Mask2Former on a Swin Transformer of one block a stage, small enough to learn the sample in a minute."""
    from transformers import Mask2FormerConfig
    from transformers.models.mask2former.image_processing_pil_mask2former import Mask2FormerImageProcessorPil

    Mask2FormerConfig(
        backbone_config={
            "model_type": "swin",
            "image_size": SAMPLE_SIZE,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 4, 4],
            "window_size": 4,
            "drop_path_rate": 0.0,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
        feature_size=64,
        mask_feature_size=64,
        hidden_dim=64,
        encoder_feedforward_dim=128,
        dim_feedforward=128,
        encoder_layers=1,
        decoder_layers=3,
        num_attention_heads=4,
        num_queries=8,
        train_num_points=256,
    ).save_pretrained(folder)
    Mask2FormerImageProcessorPil().save_pretrained(folder)
