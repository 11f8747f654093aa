"""Instance segmentation: every object's class and the pixels that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from taskrecipe import Batch, Column, Predictions, Row, Splits
from taskrecipe.vision import NO_CLASS, ObjectOptions, ObjectRecipe, Scene, mask_losses

if TYPE_CHECKING:
    import torch

    from taskrecipe import DescribedImage, ModelSource
    from taskrecipe.vision import OutlineReader

SAMPLE_SIZE = 64
"""Side of a sample image in pixels."""


class InstanceSegmentationOptions(ObjectOptions):
    """Options of `instance_segmentation`."""

    invalid_masks: Literal["error", "repair"] = Field(
        default="error",
        description="What happens to outlines that are missing, cover no pixel or reach beyond their image: 'error' "
        "stops and names the row; 'repair' leaves out such objects, cuts off what is outside, and warns how many "
        "there were.",
    )
    image_size: int = Field(
        default=384, ge=32, le=4096, description="Side in pixels of the square that images are scaled to."
    )


class InstanceSegmentation(ObjectRecipe):
    """Instance segmentation with Mask2Former or MaskFormer.

    Data is COCO json in [data.files], with the folder of images in [data].images; or a hub data set with a column
    `objects` of `category` and `segmentation`: polygons or run lengths, as COCO writes them. Images without objects
    are trained on too. A crowd is left out in training, and in evaluation neither counts as found nor as missed.
    Images that a camera stored on their side are turned upright, together with their masks. The metric is COCO's
    average precision of masks, at the size of the images themselves. Batch norms keep the statistics they come with,
    and the points at which Mask2Former compares masks are drawn for each image separately: otherwise an update would
    depend on how it is split.
    """

    Options = InstanceSegmentationOptions
    uses_all_weights = False  # encoders often have a last layer, such as a pooler, that is not used here
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

    @override
    def columns(self) -> dict[str, Column]:
        objects = Column("category and segmentation of each object; area and iscrowd if known", target=True)
        return {**super().columns(), "objects": objects}

    # Rows -------------------------------------------------------------------------------------------

    @override
    def sample(self, folder: Path) -> Splits:
        """Draw colored shapes on textured ground, and write a small Mask2Former that can find them."""
        from taskrecipe.vision import make_sample_splits

        _write_tiny_segmenter(folder)
        return make_sample_splits({"train": 320, "validation": 80}, SAMPLE_SIZE, self.spec.seed)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        """Load the model's image processor, unless the model's loss can't be accumulated exactly."""
        self.config: Any = source.config()  # rows can be counted before there is a model
        mask_losses.require_exact_loss(self.config)
        return super().load_processor(source)

    @override
    def reader(self) -> OutlineReader:
        from taskrecipe.vision import OutlineReader

        return OutlineReader(self.labels, invalid=self.options.invalid_masks)

    @override
    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Decode an image, vary it in training, and scale it and its masks. Small masks may vanish."""
        scene = _make_scene(row)
        if training:
            scene = self.options.augment.apply(scene, random)
        seen = self.processor(scene.image)
        inside = np.asarray(seen["pixel_mask"][0])
        sizes = {
            "seen": np.array([inside[:, 0].sum(), inside[0].sum()]),
            "size": np.array([row["height"], row["width"]]),
        }
        return {
            "pixel_values": np.asarray(seen["pixel_values"][0]),
            **(_example_targets(scene, inside, random) if "masks" in row else {}),
            **({} if training else sizes),
        }

    # Model ------------------------------------------------------------------------------------------

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForUniversalSegmentation

        from taskrecipe.vision import freeze_batch_norm

        model: torch.nn.Module = source.model(AutoModelForUniversalSegmentation, id2label=dict(enumerate(self.labels)))
        freeze_batch_norm(model)
        self.config = model.config
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        return model(
            pixel_values=batch["pixel_values"],
            output_auxiliary_logits=True,
            output_hidden_states=self.config.use_auxiliary_loss,  # MaskFormer makes its auxiliary logits of them
        )

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return mask_losses.loss_counts(self.config, (batch["classes"] != NO_CLASS).sum(1).tolist())

    @override
    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        return mask_losses.loss_terms(self.config, outputs, _make_targets(batch))

    # Answers ----------------------------------------------------------------------------------------

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        """Return the masks with the highest scores, at the size of the whole image."""
        square = batch["pixel_values"].shape[-2:]
        images = zip(
            outputs.class_queries_logits, outputs.masks_queries_logits, batch["seen"], batch["size"], strict=True
        )
        found = [
            _choose_best(classes, _resize(masks, square, seen.tolist(), size.tolist()))
            for classes, masks, seen, size in images
        ]
        return {key: [image[key] for image in found] for key in found[0]}

    @override
    def true_objects(self, row: Row) -> dict[str, Any]:
        return {"shapes": row["masks"], **{key: row[key] for key in ("labels", "areas", "crowds")}}

    @override
    def describe(self, example: Row) -> DescribedImage:
        from taskrecipe import Shape
        from taskrecipe.vision import boxes_around, describe_objects

        shapes = [
            Shape(self.labels[label], box=tuple(boxes_around(mask[None])[0].tolist()), mask=mask)
            for label, mask in zip(example.get("classes", []), example.get("masks", []), strict=True)
        ]
        return describe_objects(example["pixel_values"], self.processor, shapes)


def _make_scene(row: Row) -> Scene:
    """Return the image with its objects, if the row has any. A crowd is no object."""
    from taskrecipe.data import open_rgb
    from taskrecipe.vision import as_boxes, unpack_masks

    image = open_rgb(row["image"])[0]
    if "masks" not in row:
        return Scene(image)
    single = np.flatnonzero(~np.array(row["crowds"], dtype=bool))
    return Scene(
        image,
        np.array(row["labels"], dtype=np.int64)[single],
        as_boxes(row["boxes"])[single],
        unpack_masks([row["masks"][number] for number in single], (row["width"], row["height"])),
    )


def _example_targets(scene: Scene, inside: NDArray[Any], random: np.random.Generator) -> Row:
    """Return masks and classes of what is still visible, and the seed of the points at which masks are compared."""
    masks = _masks_inside(scene, inside)
    visible = masks.any((1, 2))
    return {"masks": masks[visible], "classes": scene.labels[visible], "points": random.integers(2**63 - 1)}


def _masks_inside(scene: Scene, inside: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the scene's masks where the model sees it: the part of a square that is `inside`, at its upper left."""
    from taskrecipe.vision import scale_masks

    height, width = int(inside[:, 0].sum()), int(inside[0].sum())
    masks = np.zeros((len(scene.labels), *inside.shape), dtype=bool)
    if scene.masks is not None:
        masks[:, :height, :width] = scale_masks(scene.masks, (width, height))
    return masks


def _make_targets(batch: Batch) -> list[mask_losses.Target]:
    there = batch["classes"] != NO_CLASS
    return [
        mask_losses.Target(classes[known], masks[known], seed)
        for classes, masks, known, seed in zip(
            batch["classes"], batch["masks"], there, batch["points"].tolist(), strict=True
        )
    ]


def _resize(masks: torch.Tensor, square: Sequence[int], seen: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """Return predicted masks (n, height, width) of a square at the `size` of the image, which fills `seen` of it."""
    from torch.nn.functional import interpolate

    from taskrecipe.vision import to_full_precision

    whole = interpolate(to_full_precision(masks)[None], size=list(square), mode="bilinear", align_corners=False)
    part = whole[..., : seen[0], : seen[1]]
    return interpolate(part, size=list(size), mode="bilinear", align_corners=False)[0]


def _choose_best(classes: torch.Tensor, masks: torch.Tensor) -> dict[str, Any]:
    """Return the pairs of a class and a mask with the highest scores.

    The score is the probability of the class times the mean probability of the mask's pixels.
    """
    from taskrecipe.vision import MOST_PREDICTIONS, pack_masks, to_full_precision

    inside = masks > 0
    pixels = inside.sum((1, 2))
    certainty = (masks.sigmoid() * inside).sum((1, 2)) / pixels.clamp(min=1)  # 0 where there is no pixel
    scores = to_full_precision(classes).softmax(-1)[:, :-1] * certainty[:, None]
    order = scores.flatten().argsort(descending=True, stable=True)[:MOST_PREDICTIONS]
    order = order[scores.flatten()[order] > 0]
    queries, labels = order // scores.shape[1], order % scores.shape[1]
    runs = pack_masks(inside.cpu().numpy())
    return {
        "shapes": [runs[query] for query in queries.tolist()],
        "labels": labels.cpu().numpy(),
        "scores": scores.flatten()[order].cpu().numpy(),
    }


def _write_tiny_segmenter(folder: Path) -> None:
    """Write a Mask2Former on a Swin Transformer of one block a stage, which learns the sample in a minute."""
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
