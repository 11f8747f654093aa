"""What recipes that find objects in pictures have in common: their data, their classes, and COCO's measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from taskrecipe.core.recipe import Column, Direction, Recipe, Splits
from taskrecipe.core.spec.table import TaskOptions
from taskrecipe.core.vision.augment import Augment
from taskrecipe.core.vision.processors import Fit

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.vision.objects import ObjectReader

NO_CLASS = -1
"""Stands for the class of what is no object, but fills a batch up."""


class ObjectOptions(TaskOptions):
    """Options of every such recipe."""

    image_size: int = Field(
        default=640, ge=32, le=4096, description="Side in pixels of the square that pictures are scaled to."
    )
    fit: Fit = Field(
        default="model",
        description="How a picture gets square: scaled with its shape kept and padded, or stretched; 'model' does what "
        "the model's image processor does.",
    )
    augment: Augment = Field(default=Augment(), description="How training pictures are varied.")


class ObjectRecipe(Recipe):
    """Pictures with a column `objects`. A subclass says how objects are read and what shape they have."""

    options: ObjectOptions
    shape: ClassVar[Literal["bbox", "segm"]]
    """What predictions and truths are compared by: boxes or masks."""

    def reader(self) -> ObjectReader:
        """What reads, checks and numbers the objects of a row."""
        raise NotImplementedError

    def truth(self, rows: Dataset) -> list[dict[str, Any]]:
        """The `shapes`, `labels`, `areas` and `crowds` of each preprocessed row."""
        raise NotImplementedError

    def metrics(self) -> dict[str, Direction]:
        """COCO's average precision: over all overlaps, at two of them, and by size."""
        return dict.fromkeys(("map", "map_50", "map_75", "map_small", "map_medium", "map_large"), "max")

    def columns(self) -> dict[str, Column]:
        """A picture and what is in it."""
        size = "pixels of the picture that objects are drawn on, to tell whether they must turn with it"
        return {
            "image": Column("a picture"),
            "objects": Column("category and place of each object; area and iscrowd if known"),
            "width": Column(size, required=False),
            "height": Column(size, required=False),
        }

    def check(self, splits: Splits) -> None:
        """Find the classes; pictures and objects are checked as they are read, once."""
        from taskrecipe.core.vision.objects import category_names

        self.labels = category_names(splits)

    def load_processor(self, source: ModelSource) -> Any:
        """The model's image processor, set to squares; a model that knows all classes keeps its numbering of them."""
        from taskrecipe.core.vision.objects import numbering
        from taskrecipe.core.vision.processors import square_processor

        self.labels = numbering(self.labels, source.config())
        return square_processor(source, self.options.image_size, self.options.fit)

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Check pictures and objects, and put objects into one form, in pixels of the upright picture."""
        from datasets import Dataset, concatenate_datasets

        from taskrecipe.core.data.images import undecoded
        from taskrecipe.core.vision.processors import require_thickness

        reader = self.reader()
        objects = Dataset.from_dict(reader.read(rows, split), features=reader.features())
        if self.processor.do_pad:
            require_thickness(zip(objects["width"], objects["height"], strict=True), self.options.image_size, split)
        return concatenate_datasets([undecoded(rows.select_columns(["image"])), objects], axis=1)

    def padding(self) -> dict[str, int]:
        """What tells an object from the padding after the last one: that it has a class."""
        return {"classes": NO_CLASS}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """COCO's average precision, and that of each class."""
        from taskrecipe.core.vision.average_precision import AveragePrecision

        found = [dict(zip(predictions, values, strict=True)) for values in zip(*predictions.values(), strict=True)]
        metric = AveragePrecision(self.labels, self.shape)
        numbers: dict[str, float] = metric.compute(predictions=found, references=self.truth(rows))
        return numbers
