"""The contract: what a recipe supplies, and the defaults that carry the rest.

A recipe says what differs between tasks; the loop never asks which task it is. The driver calls, in this order:

    check(splits)  →  load_processor  →  preprocess  →  load_model      once
    example  →  collate  →  weights  →  loss                            every micro-batch
    predictions  →  score                                               every evaluation

Heavy imports belong inside methods: a spec is validated, listed and explained without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from taskrecipe.core.errors import UsageError
from taskrecipe.core.spec.table import TaskOptions

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.spec.spec import RecipeChoice, Spec
    from taskrecipe.core.training.update import Update

Row = dict[str, Any]
Batch = dict[str, Any]
Splits = dict[str, "Dataset"]
Direction = Literal["max", "min"]


@dataclass(frozen=True)
class Column:
    """A column that a recipe reads, under the name it has there; `[data.columns]` maps others to it."""

    description: str
    required: bool = True


@dataclass
class Loss:
    """What a forward pass gives: each term a mean over the items that `weights` counts, and the outputs."""

    terms: dict[str, torch.Tensor]
    outputs: Any = None


@dataclass
class Total:
    """A prediction that is added up over batches instead of kept for each row, so that memory stays flat."""

    value: Any


class Recipe:
    """One task. A subclass's docstring is its description, the first line its summary in `recipe list`."""

    Options: ClassVar[type[TaskOptions]] = TaskOptions
    """The model of `[task]`."""

    smooths_labels: ClassVar[bool] = False
    """Whether labels are classes that `loss` smooths by `[train].label_smoothing`; where not, the key is refused."""

    sample_settings: ClassVar[Mapping[str, Any]] = {}
    """Spec values that suit the sample's tiny model, by dotted key: {"train.learning_rate": 1e-3}."""

    def __init__(self, spec: Spec, choice: RecipeChoice | None = None) -> None:
        self.spec = spec
        self.options: Any = (choice or spec).task
        self.processor: Any = None
        self.labels: list[str] = []

    # Known before anything is loaded ---------------------------------------------------------------

    def metrics(self) -> dict[str, Direction]:
        """What `score` reports and which way is better; the first is what `best` means by default."""
        return {}

    def columns(self) -> dict[str, Column]:
        """The columns that rows must or may have."""
        return {}

    def splits(self) -> dict[str, str]:
        """Our name of each split and the usual one; all but `train` are evaluated."""
        return {"train": "train", "validation": "validation"}

    def reported(self) -> dict[str, Direction]:
        """Every number that an evaluation of all splits gives, by name; override where splits differ in them."""
        own: dict[str, Direction] = {**self.metrics(), "loss": "min"}
        return {
            reported_name(split, metric): direction
            for split in evaluated_splits(self)
            for metric, direction in own.items()
        }

    def objections(self) -> dict[str, str]:
        """What in the spec this recipe can't do, by dotted key: {"train.compile": "tells why"}; the spec is refused."""
        return {}

    def parts(self) -> dict[str, Recipe]:
        """Recipes that are trained together in this one, each on rows of its own, which its own spec names."""
        return {}

    def models(self) -> list[ModelSource]:
        """Models that `load_model` reads besides the spec's `[model]`: they are asked for and fetched along with it."""
        return []

    # Data -------------------------------------------------------------------------------------------

    def join(self, parts: dict[str, Splits]) -> Splits:
        """Make one data set of those that `parts` read."""
        raise NotImplementedError

    def sample(self, folder: Path) -> Splits:
        """Make a small learnable data set, and write into `folder` the tiny model that fits it.

        The folder is in the Hugging Face layout; a configuration without weights starts at random.
        """
        raise UsageError(f"recipe {self.spec.recipe!r} has no sample data: name data and a model that can be had")

    def check(self, splits: Splits) -> None:
        """Refuse rows that can't be trained on, by `DataError`; find what the model must know, such as labels."""

    def load_processor(self, source: ModelSource) -> Any:
        """Load the tokenizer or image processor; it is then `self.processor` and saved with the model."""
        return None

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Turn raw rows into what `example` takes: a pure function of rows, options, labels and processor.

        The result is cached by all of these, so this runs once for the same data.
        """
        return rows

    def lengths(self, rows: Dataset) -> Sequence[int] | None:
        """How long each preprocessed row is, for buckets of like lengths; None where that has no meaning."""
        if "input_ids" not in rows.column_names:
            return None
        import pyarrow.compute as pc

        column = rows.with_format("arrow")["input_ids"]
        return [
            int(n) for chunk in getattr(column, "chunks", [column[:]]) for n in pc.list_value_length(chunk).to_pylist()
        ]

    def draw(self, rows: Dataset, random: np.random.Generator) -> Sequence[int] | None:
        """The rows of one epoch, always equally many, where that is not simply each row once."""
        return None

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """One row as the model sees it this time: masks, flips, crops. Randomness comes from `random` alone.

        It is a function of seed, epoch and row; in evaluation it is the same every time.
        """
        return row

    def collate(self, rows: list[Row]) -> Batch:
        """Make a batch of examples. By default ragged lists are padded, and everything becomes a tensor."""
        from taskrecipe.core.collate import pad

        return pad(rows, self.padding())

    def padding(self) -> dict[str, int]:
        """What a key is padded with in `collate`; those not named get 0."""
        pad_id = getattr(self.processor, "pad_token_id", None)
        return {"labels": -100, "input_ids": pad_id if pad_id is not None else 0}

    # Model ------------------------------------------------------------------------------------------

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """Load the model, pretrained or at random, as `source` says.

        Its outputs are tensors in a tuple, dict or dataclass: there torch looks for them when processes are many.
        """
        raise NotImplementedError

    def weights(self, batch: Batch) -> dict[str, float]:
        """How many items each loss term is a mean over: known from the batch alone, always the same terms."""
        return {"loss": float((batch["labels"] != -100).sum())}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """Run the model; by default the loss is its own, or in training with smoothed labels their cross entropy."""
        outputs = model(**batch)
        smoothing = self.spec.train.label_smoothing
        if not (smoothing and self.smooths_labels and model.training):
            return Loss({"loss": outputs.loss}, outputs)
        from taskrecipe.core.losses import smoothed_cross_entropy

        return Loss({"loss": smoothed_cross_entropy(outputs.logits, batch["labels"], smoothing)}, outputs)

    def backward(self, model: torch.nn.Module, update: Update) -> None:
        """Add up the gradients of one update. Override where its examples depend on one another."""
        for batch in update:
            update.backward(self.loss(model, batch.inputs).terms, batch)

    # Evaluation -------------------------------------------------------------------------------------

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """Reduce outputs to what `score` needs: for each key one value a row, or a `Total`."""
        return {}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """Turn the predictions on a whole split, in row order, into the numbers that `metrics` declares."""
        return {}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Further numbers, made of those of all splits; they must be among `reported`."""
        return {}


def evaluated_splits(recipe: Recipe) -> list[str]:
    """The splits a run is measured on."""
    return recipe.spec.evaluate.splits or [split for split in recipe.splits() if split != "train"]


def reported_metrics(recipe: Recipe) -> dict[str, Direction]:
    """Every number an evaluation gives by name, and which way is better.

    The split `validation` reports plain names, any other `<split>/<metric>`; the loss is always there.
    """
    return recipe.reported()


def reported_name(split: str, metric: str) -> str:
    """The name that a metric of a split is reported under."""
    return metric if split == "validation" else f"{split}/{metric}"
