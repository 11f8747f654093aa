"""What recipes around another recipe share: they name it in the spec, and leave to it all that they don't change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo

from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits
from taskrecipe.core.registry import Registry, installed
from taskrecipe.core.spec.spec import RecipeChoice
from taskrecipe.core.spec.table import TaskOptions

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.spec.spec import Spec


def chosen(choice: RecipeChoice, info: ValidationInfo) -> type[Recipe]:
    """The recipe that is named, of those that the spec is checked against."""
    registry: Registry = info.context["registry"] if info.context else installed()
    return registry.recipe(choice.recipe)


def wrappable(choice: RecipeChoice, info: ValidationInfo) -> RecipeChoice:
    """The choice, unless its recipe adds up gradients in a way of its own, which a recipe around it can't keep."""
    if chosen(choice, info).backward is not Recipe.backward:
        raise ValueError(
            f"recipe {choice.recipe!r} computes whole updates in its own way, so it can't be part of another"
        )
    return choice


InnerRecipe = Annotated[RecipeChoice, AfterValidator(wrappable)]
"""A recipe that another one may call."""


def suited(choice: RecipeChoice, spec: Spec) -> RecipeChoice:
    """The choice; on sample data, with the options that suit the sample of its recipe."""
    if not spec.data.sample:
        return choice
    settings = installed().recipe(choice.recipe).sample_settings
    options = {key.removeprefix("task."): value for key, value in settings.items() if key.startswith("task.")}
    return choice.model_copy(update={"task": choice.task.model_copy(update=options)})


def objections_of(inner: Recipe, at: str) -> dict[str, str]:
    """The objections of a recipe that the spec names at `at`, where its options are too."""
    objections = inner.objections().items()
    return {f"{at}.{key}" if key.split(".")[0] == "task" else key: reason for key, reason in objections}


class WrappingOptions(TaskOptions):
    """Options of every recipe around another one."""

    inner: InnerRecipe = Field(description="The recipe that is wrapped, by name, and its own options.")


class Wrapping(Recipe):
    """A recipe around another one, which it equals in everything that a subclass doesn't override."""

    Options: ClassVar[type[TaskOptions]] = WrappingOptions
    options: WrappingOptions
    sample_settings: ClassVar = {
        "train.learning_rate": 1e-3,
        "train.epochs": 4,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }

    def __init__(self, spec: Spec, choice: RecipeChoice | None = None) -> None:
        inner = suited((choice or spec).task.inner, spec)  # type: ignore[attr-defined]
        self.inner = installed().recipe(inner.recipe)(spec, inner)
        super().__init__(spec, choice)

    @property
    def processor(self) -> Any:
        """The inner recipe's processor."""
        return self.inner.processor

    @processor.setter
    def processor(self, processor: Any) -> None:
        self.inner.processor = processor

    @property
    def labels(self) -> list[str]:
        """The inner recipe's labels."""
        return self.inner.labels

    @labels.setter
    def labels(self, labels: list[str]) -> None:
        self.inner.labels = labels

    @property
    def smooths_labels(self) -> bool:  # type: ignore[override]  # a fact about the class there, about the inner one here
        """Whether the inner recipe does."""
        return self.inner.smooths_labels

    def metrics(self) -> dict[str, Direction]:
        """The inner recipe's metrics."""
        return self.inner.metrics()

    def columns(self) -> dict[str, Column]:
        """The inner recipe's columns."""
        return self.inner.columns()

    def splits(self) -> dict[str, str]:
        """The inner recipe's splits."""
        return self.inner.splits()

    def reported(self) -> dict[str, Direction]:
        """What the inner recipe reports."""
        return self.inner.reported()

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """The inner recipe's summary."""
        return self.inner.summarize(metrics)

    def objections(self) -> dict[str, str]:
        """What the inner recipe can't do."""
        return objections_of(self.inner, "task.inner")

    def models(self) -> list[ModelSource]:
        """The inner recipe's further models."""
        return self.inner.models()

    def sample(self, folder: Path) -> Splits:
        """The inner recipe's sample."""
        return self.inner.sample(folder)

    def check(self, splits: Splits) -> None:
        """Check as the inner recipe does."""
        self.inner.check(splits)

    def load_processor(self, source: ModelSource) -> Any:
        """The inner recipe's processor."""
        return self.inner.load_processor(source)

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Preprocess as the inner recipe does."""
        return self.inner.preprocess(rows, split)

    def lengths(self, rows: Dataset) -> Sequence[int] | None:
        """The lengths that the inner recipe tells."""
        return self.inner.lengths(rows)

    def draw(self, rows: Dataset, random: np.random.Generator) -> Sequence[int] | None:
        """The rows that the inner recipe draws."""
        return self.inner.draw(rows, random)

    @property
    def example(self) -> Callable[[Row, np.random.Generator, bool], Row]:
        """The inner recipe's own method, so that where it has none no row is looked at one by one."""
        return self.inner.example

    def collate(self, rows: list[Row]) -> Batch:
        """The inner recipe's batch."""
        return self.inner.collate(rows)

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """The inner recipe's model."""
        return self.inner.load_model(source)

    def weights(self, batch: Batch) -> dict[str, float]:
        """The inner recipe's weights."""
        return self.inner.weights(batch)

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """The inner recipe's loss."""
        return self.inner.loss(model, batch)

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The inner recipe's predictions."""
        return self.inner.predictions(model, batch, outputs)

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """The inner recipe's scores."""
        return self.inner.score(predictions, rows)
