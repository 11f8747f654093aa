"""The contract: what a recipe supplies, and the defaults for the rest.

A recipe says what differs between tasks. The loop never asks which task it trains. Methods are called in this order:

    learn  →  check  →  load_processor  →  preprocess  →  load_model     once, before training
    example  →  collate  →  loss_counts  →  forward  →  loss             for every micro-batch
    forward  →  predict  →  score                                        for every evaluation
    infer (forward  →  predict)  →  answer, answer_images                to predict rows without targets
    row_losses  →  row_scores  →  scorer  →  answer  →  judge            for evidence about each evaluated row

Import heavy packages inside methods: a spec is validated, listed and explained without torch. What only a few recipes
need, such as training several recipes at once, is in `taskrecipe.optional`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from taskrecipe.errors import UsageError
from taskrecipe.spec.table import TaskOptions

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset
    from PIL.Image import Image

    from taskrecipe.description import Description
    from taskrecipe.model import ModelSource
    from taskrecipe.spec.spec import Spec

Row = dict[str, Any]
Batch = dict[str, Any]
Splits = dict[str, "Dataset"]
Direction = Literal["max", "min"]

Predictions = dict[str, Any]
"""For each name one value a row: a tensor, an array or a list."""

Scorer = Callable[["np.ndarray[Any, Any]"], dict[str, float]]
"""Takes numbers of rows, of which some may come several times, and returns the metrics of these rows."""

IGNORED = -100
"""The label of what is not predicted."""

PREDICT = "predict"
"""The name of the split of rows that are only predicted."""


@dataclass(frozen=True)
class Column:
    """A column that a recipe reads, by its name there; `[data.columns]` maps other names to it."""

    description: str
    required: bool = True
    target: bool = False
    """Whether it holds what the model learns to predict. Rows without it can still be predicted."""


@dataclass(frozen=True)
class Judgment:
    """How one row's prediction compares with what was right. None stands for what the recipe can't say."""

    reference: Any = None
    """What was right, as JSON values, in the form in which `answer` says it."""
    confidence: float | None = None
    """The probability of what was predicted."""
    correct: bool | None = None
    loss: float | None = None
    """The row's own loss, if the prediction holds it; else it comes from `row_losses`."""


class Recipe:
    """One task. The docstring of a subclass is its description, the first line its summary in `recipe list`."""

    Options: ClassVar[type[TaskOptions]] = TaskOptions
    """The model of `[task]`."""

    uses_model: ClassVar[bool] = True
    """Whether `load_model` loads what `[model]` names. Set it to False if the recipe builds a module of its own."""

    smooths_labels: ClassVar[bool] = False
    """Whether labels are classes that `loss` smooths by `[train].label_smoothing`; if not, that key is refused."""

    uses_all_weights: ClassVar[bool] = True
    """Whether every batch gives each trained weight a gradient. Set it to False if some batches leave weights unused.

    For example the heads of other tasks, or layers that are dropped at random. Several processes then look for them.
    """

    learned: ClassVar[tuple[str, ...]] = ("labels",)
    """The attributes that `learn` sets. They are JSON values, kept with the run and with the exported model."""

    length_options: ClassVar[Mapping[str, str]] = {}
    """The keys of `[task]` that cut off long rows, and how the names of the columns end that they cut.

    {"max_length": "input_ids"}: `recipe preview` shows what is cut off, and what other lengths would cut.
    """

    sample_settings: ClassVar[Mapping[str, Any]] = {}
    """Spec values that suit the sample's tiny model, by dotted key: {"train.learning_rate": 1e-3}."""

    resamples: ClassVar[int] = 1000
    """How often rows are drawn again for the intervals of metrics. Lower it if `scorer` is slow."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.options: Any = spec.task
        self.processor: Any = None
        self.labels: list[str] = []

    # Declared: known before anything is loaded ------------------------------------------------------

    def metrics(self) -> dict[str, Direction]:
        """Return the metrics that `score` reports, and which way is better. The first decides the best checkpoint."""
        return {}

    def columns(self) -> dict[str, Column]:
        """Return the columns that rows must or may have."""
        return {}

    def input_columns(self) -> dict[str, Column]:
        """Return the columns that rows to predict must or may have: by default all that are no targets."""
        return {name: column for name, column in self.columns().items() if not column.target}

    def splits(self) -> dict[str, str]:
        """Return our name of each split and its usual name in data. All but `train` are evaluated."""
        return {"train": "train", "validation": "validation"}

    def objections(self) -> dict[str, str]:
        """Return what in the spec this recipe can't do: a dotted key, and why. The spec is refused at that line."""
        return {}

    # Rows -------------------------------------------------------------------------------------------

    def sample(self, folder: Path) -> Splits:
        """Make a small data set that can be learned, and write a tiny model that fits it into `folder`.

        The folder is in the Hugging Face layout. A configuration without weights starts from random weights.
        """
        raise UsageError(f"recipe {self.spec.recipe!r} has no sample data: name data and a model in the spec")

    def learn(self, rows: Dataset) -> None:
        """Learn from the training rows what the model must know, such as the labels: set the attributes in `learned`.

        It is not called when a trained model is used: the attributes are then restored.
        """

    def check(self, rows: Dataset, split: str) -> None:
        """Raise `DataError` for rows that can't be used. Target columns may be missing when rows are predicted."""

    def load_processor(self, source: ModelSource) -> Any:
        """Load the tokenizer or image processor. It becomes `self.processor` and is exported with the model."""
        return None

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Turn rows into what `example` takes: a pure function of rows, options, learned values and processor.

        The result is cached by all of these. Rows without target columns must work too.
        """
        return rows

    def lengths(self, rows: Dataset) -> Sequence[int] | None:
        """Return the length of each preprocessed row, to batch rows of similar length; None if rows have no length."""
        if "input_ids" not in rows.column_names:
            return None
        from taskrecipe.data.row_lengths import count_items

        return count_items(rows, "input_ids")

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Return the row as the model sees it this time: masked, flipped, cropped. Draw from `random` only.

        `random` is a function of seed, epoch and row; in evaluation it is the same every time.
        """
        return row

    def collate(self, rows: list[Row]) -> Batch:
        """Make a batch of examples. By default lists of unequal length are padded, and every value becomes a tensor."""
        from taskrecipe.training.collate import pad_rows

        return pad_rows(rows, self.padding())

    def padding(self) -> dict[str, int]:
        """Return the value that `collate` pads each key with; keys that are not named are padded with 0."""
        pad_id = getattr(self.processor, "pad_token_id", None)
        return {"labels": IGNORED, "input_ids": pad_id if pad_id is not None else 0}

    # Model ------------------------------------------------------------------------------------------

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """Load the model, pretrained or with random weights, as `source` says.

        Its outputs are tensors in a tuple, dict or dataclass: several processes look for them there.
        """
        raise NotImplementedError

    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the model. The batch has targets in training and evaluation, and none when rows are predicted."""
        return model(**batch)

    def loss_counts(self, batch: Batch) -> dict[str, float]:
        """Return how many items each loss term is a mean over: known from the batch alone, the same terms always."""
        return {"loss": float((batch["labels"] != IGNORED).sum())}

    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        """Return each loss term as a mean. By default the model's own loss, or smoothed cross entropy in training."""
        smoothing = self.spec.train.label_smoothing if training and self.smooths_labels else 0.0
        if not smoothing:
            return {"loss": outputs.loss}
        from taskrecipe.training.losses import smoothed_cross_entropy

        return {"loss": smoothed_cross_entropy(outputs.logits, batch["labels"], smoothing)}

    # Answers ----------------------------------------------------------------------------------------

    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        """Reduce outputs to what `score` and `answer` need: for each name one value a row. Never read targets."""
        return {}

    def infer(self, model: torch.nn.Module, batch: Batch) -> Predictions:
        """Predict a batch for a person. By default it is what `score` gets; add what only an answer needs.

        For example text that the model generates, or an image that it fills in.
        """
        return self.predict(self.forward(model, batch), batch)

    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        """Compare the predictions of a whole split, in row order, with the preprocessed rows: the metrics' values."""
        return {}

    def answer(self, prediction: Row, row: Row) -> Any:
        """Return one row's prediction as a person reads it, as JSON values. `row` is the preprocessed row."""
        return {name: as_json(value) for name, value in prediction.items()}

    def answer_images(self, prediction: Row, row: Row) -> dict[str, Image]:
        """Return images that show one row's prediction, by name, such as its map. They become files."""
        return {}

    # Evidence: what an evaluation says about each row ------------------------------------------------

    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return for each row the sum of its loss and the number of items in it; None if that is not known.

        By default the cross entropy of one class a row, if that is what the batch has.
        """
        from taskrecipe.training.losses import class_losses

        return class_losses(getattr(outputs, "logits", None), batch.get("labels"))

    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        """Return each row's value of every metric that is the mean of such values; NaN for rows that it leaves out.

        By default the accuracy of `label`, if rows have one class each.
        """
        from taskrecipe.use.scores import score_classes

        return score_classes(self, predictions, rows)

    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        """Return a function that scores any choice of rows as `score` scores all of them.

        It is called for every resample of the rows, so do here what is the same for all choices. By default it takes
        the means of `row_scores`, and calls `score` on the chosen rows if there are other metrics.
        """
        from taskrecipe.use.scores import make_scorer

        return make_scorer(self, predictions, rows)

    def judge(self, prediction: Row, row: Row) -> Judgment:
        """Compare one row's prediction with what was right. By default for `label`, if rows have one class each."""
        from taskrecipe.use.scores import judge_class

        return judge_class(self, prediction, row)

    # Looking ----------------------------------------------------------------------------------------

    def describe(self, example: Row) -> Description:
        """Show an example as the model sees it: text with the role of each piece, or an image with what is on it."""
        from taskrecipe.description import describe_values

        return describe_values(example, self.processor)

    def count_classes(self, rows: Dataset) -> dict[str, int]:
        """Count each class in preprocessed rows; by default the numbers in a column `labels`, by their names."""
        from taskrecipe.data.labels import count_labels

        return count_labels(rows, self.labels)

    def facts(self, rows: Dataset, split: str) -> dict[str, str]:
        """Return what else `recipe preview` should say of the preprocessed rows of a split: names and texts."""
        return {}


def as_json(value: Any) -> Any:
    """Return an array, tensor or number as plain JSON values; anything else as it is."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): as_json(item) for name, item in value.items()}
    return value


def target_columns(recipe: Recipe) -> list[str]:
    """Return the columns that hold what is predicted."""
    return [name for name, column in recipe.columns().items() if column.target]


def learned_values(recipe: Recipe) -> dict[str, Any]:
    """Return what the recipe learned from its training rows, as JSON values."""
    return {name: getattr(recipe, name) for name in recipe.learned}


def restore_learned(recipe: Recipe, values: Mapping[str, Any]) -> None:
    """Give a recipe what another of its kind has learned."""
    for name in recipe.learned:
        setattr(recipe, name, values[name])


def evaluated_splits(recipe: Recipe) -> list[str]:
    """Return the splits that are evaluated: those the spec names, else the recipe's, of which files may give some."""
    spec = recipe.spec
    if spec.evaluate.splits:
        return spec.evaluate.splits
    usual = {ours: theirs for ours, theirs in recipe.splits().items() if ours != "train"}
    given = [
        ours for ours, theirs in usual.items() if spec.data.files.keys() & {ours, spec.data.splits.get(ours, theirs)}
    ]
    return list(usual) if spec.data.sample else given or list(usual)


def final_splits(recipe: Recipe) -> list[str]:
    """Return the splits that are evaluated only once, after training. Those of a part begin with its name."""
    from taskrecipe.optional import HasParts

    if isinstance(recipe, HasParts):
        return [f"{name}/{split}" for name, part in recipe.parts().items() for split in final_splits(part)]
    return list(recipe.spec.evaluate.final)


def needed_splits(recipe: Recipe) -> list[str]:
    """Return the splits that a run reads: those it trains on, evaluates, and evaluates once at its end."""
    return list(dict.fromkeys(["train", *evaluated_splits(recipe), *final_splits(recipe)]))


def reported_metrics(recipe: Recipe) -> dict[str, Direction]:
    """Return every metric of an evaluation of all splits by its reported name, and which way is better.

    The split `validation` reports plain names, any other `<split>/<metric>`. The loss is always there.
    """
    from taskrecipe.optional import SummarizesMetrics

    if isinstance(recipe, SummarizesMetrics):
        return recipe.reported()
    own: dict[str, Direction] = {**recipe.metrics(), "loss": "min"}
    return {
        reported_name(split, metric): direction
        for split in evaluated_splits(recipe)
        for metric, direction in own.items()
    }


def best_metric(recipe: Recipe) -> tuple[str, Direction]:
    """Return the metric that decides the best checkpoint, and which way is better."""
    reported = reported_metrics(recipe)
    name = recipe.spec.evaluate.best or next(iter(reported))
    return name, reported[name]


def reported_name(split: str, metric: str) -> str:
    """Return the name under which a metric of a split is reported."""
    return metric if split == "validation" else f"{split}/{metric}"
