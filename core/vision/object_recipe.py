"""What recipes that find objects in images have in common: their data, their classes, and COCO's metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from taskrecipe.recipe import Column, Direction, Judgment, Predictions, Recipe, Row, Scorer, as_json
from taskrecipe.spec.table import TaskOptions
from taskrecipe.vision.augmentation import Augment
from taskrecipe.vision.processors import Fit

if TYPE_CHECKING:
    from datasets import Dataset
    from PIL.Image import Image

    from taskrecipe.description import Shape
    from taskrecipe.model import ModelSource
    from taskrecipe.vision.objects import ObjectReader

NO_CLASS = -1
"""The class of the padding after the last object of an image in a batch."""

LOWEST_ANSWER_SCORE = 0.05
"""Predictions below it are scored, but not part of an answer."""

LOWEST_DRAWN_SCORE = 0.3
"""Predictions below it are not drawn: they would hide those that count."""


class ObjectOptions(TaskOptions):
    """Options of every such recipe."""

    image_size: int = Field(
        default=640, ge=32, le=4096, description="Side in pixels of the square that images are scaled to."
    )
    fit: Fit = Field(
        default="model",
        description="How an image becomes square: scaled with its shape kept and padded, or stretched; 'model' does "
        "what the model's image processor does.",
    )
    augment: Augment = Field(default=Augment(), description="How training images are varied.")


class ObjectRecipe(Recipe):
    """Images with a column `objects`. A subclass defines how objects are read and what shape they have."""

    options: ObjectOptions
    resamples = 200  # accumulating precision over all images takes milliseconds
    shape: ClassVar[Literal["bbox", "segm"]]
    """What predictions are compared by: boxes or masks."""

    def reader(self) -> ObjectReader:
        """Return what reads, checks and numbers the objects of a row."""
        raise NotImplementedError

    def true_objects(self, row: Row) -> dict[str, Any]:
        """Return the `shapes`, `labels`, `areas` and `crowds` of a preprocessed row."""
        raise NotImplementedError

    def truth(self, rows: Dataset) -> list[dict[str, Any]]:
        """Return the objects of all preprocessed rows."""
        return [self.true_objects(row) for row in rows.remove_columns("image")]

    @override
    def metrics(self) -> dict[str, Direction]:
        return dict.fromkeys(("map", "map_50", "map_75", "map_small", "map_medium", "map_large"), "max")

    @override
    def columns(self) -> dict[str, Column]:
        size = "pixels of the image that objects were drawn on; it shows whether they must turn with the image"
        return {
            "image": Column("an image"),
            "objects": Column("category and place of each object; area and iscrowd if known", target=True),
            "width": Column(size, required=False),
            "height": Column(size, required=False),
        }

    @override
    def learn(self, rows: Dataset) -> None:
        from taskrecipe.vision.objects import learn_categories

        self.labels = learn_categories(rows)

    @override
    def check(self, rows: Dataset, split: str) -> None:
        """Check the declared classes only. `preprocess` reads each image and its objects, and checks them there."""
        from taskrecipe.vision.objects import check_categories

        check_categories(rows, split, self.labels)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.vision.objects import order_categories
        from taskrecipe.vision.processors import load_square_processor

        self.labels = order_categories(self.labels, source.config())
        return load_square_processor(source, self.options.image_size, self.options.fit)

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Check images and objects, and store objects in one form, in pixels of the upright image."""
        from datasets import Dataset, concatenate_datasets

        from taskrecipe.data.images import keep_encoded
        from taskrecipe.vision.processors import require_thickness

        reader = self.reader()
        made = Dataset.from_dict(reader.read(rows, split), features=reader.features(rows))
        if self.processor.do_pad:
            require_thickness(zip(made["width"], made["height"], strict=True), self.options.image_size, split)
        return concatenate_datasets([keep_encoded(rows.select_columns(["image"])), made], axis=1)

    @override
    def padding(self) -> dict[str, int]:
        return {"classes": NO_CLASS}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        from taskrecipe.vision.average_precision import AveragePrecision

        metric = AveragePrecision(self.labels, self.shape)
        found = split_predictions(predictions)
        numbers: dict[str, float] = metric.compute(predictions=found, references=self.truth(rows))
        return numbers

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        """Match predictions and objects of each image once; what is chosen is only accumulated."""
        from taskrecipe.vision.average_precision import AveragePrecision

        metric = AveragePrecision(self.labels, self.shape)
        found = [as_json(image) for image in split_predictions(predictions)]
        matched = metric.match_images(found, [as_json(image) for image in self.truth(rows)])
        return lambda chosen: metric.score_images(matched, chosen)

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        """Call an image correct if the predictions with a score of at least 0.5 are its objects, by half or more."""
        from taskrecipe.vision.judging import are_same_objects

        if "labels" not in row:
            return Judgment()
        truth = self.true_objects(row)
        kind = "box" if self.shape == "bbox" else "mask"
        labels, shapes = truth["labels"], as_json(truth["shapes"])
        reference = [
            {"label": self.labels[label], kind: shape, **({"crowd": True} if crowd else {})}
            for label, shape, crowd in zip(labels, shapes, truth["crowds"], strict=True)
        ]
        return Judgment(reference, correct=are_same_objects(prediction, truth))

    @override
    def facts(self, rows: Dataset, split: str) -> dict[str, str]:
        from taskrecipe.vision.object_statistics import summarize_objects

        return summarize_objects(rows, self.options.image_size) if "areas" in rows.column_names else {}

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        """Return the objects that were found, those with the highest score first."""
        kind = "box" if self.shape == "bbox" else "mask"
        return [
            {"label": self.labels[int(label)], "score": float(score), kind: as_json(shape)}
            for label, score, shape in zip(
                prediction["labels"], prediction["scores"], prediction["shapes"], strict=True
            )
            if score >= LOWEST_ANSWER_SCORE
        ]

    @override
    def answer_images(self, prediction: Row, row: Row) -> dict[str, Image]:
        """Return the image with the objects that were found drawn on it, unless the model is very unsure of them."""
        from taskrecipe.data.images import open_rgb
        from taskrecipe.vision.drawing import draw_shapes

        image = open_rgb(row["image"])[0]
        found = zip(prediction["labels"], prediction["scores"], prediction["shapes"], strict=True)
        sure = [one for one in found if one[1] >= LOWEST_DRAWN_SCORE]
        shapes = [self._draw(f"{self.labels[int(label)]} {score:.2f}", shape) for label, score, shape in sure]
        return {"objects": draw_shapes(image, shapes, self.labels)}

    def _draw(self, label: str, shape: Any) -> Shape:
        from taskrecipe.description import Shape
        from taskrecipe.vision.masks import boxes_around, unpack_masks

        if self.shape == "bbox":
            left, top, width, height = map(float, shape)
            return Shape(label, box=(left, top, left + width, top + height))
        mask = unpack_masks([shape], (shape["size"][1], shape["size"][0]))
        left, top, right, bottom = boxes_around(mask)[0].tolist()
        return Shape(label, box=(left, top, right, bottom), mask=mask[0])

    def coco_results(
        self, predictions: Predictions, image_ids: Sequence[int] | None, class_ids: Mapping[str, int]
    ) -> list[dict[str, Any]]:
        """Return what was found in all images as COCO's tools read it.

        An image without an id is named by its row, and a class without one by its place in `labels`, from 0.
        """
        numbers = [class_ids.get(name, number) for number, name in enumerate(self.labels)]
        key = "bbox" if self.shape == "bbox" else "segmentation"
        found = enumerate(split_predictions(predictions))
        return [
            {
                "image_id": row if image_ids is None else image_ids[row],
                "category_id": numbers[int(label)],
                key: as_json(shape),
                "score": float(score),
            }
            for row, image in found
            for label, score, shape in zip(image["labels"], image["scores"], image["shapes"], strict=True)
        ]


def split_predictions(predictions: Predictions) -> list[Row]:
    """Return the predictions of each row by name."""
    return [dict(zip(predictions, values, strict=True)) for values in zip(*predictions.values(), strict=True)]
