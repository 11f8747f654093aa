"""The GLUE tasks, and any data of their shape: one or two sentences, and a class or a number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from taskrecipe.core.recipe import Batch, Column, Direction, Recipe, Splits
from taskrecipe.core.spec.table import Count, TaskOptions

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource


@dataclass(frozen=True)
class Task:
    """What a GLUE task reads and what it reports."""

    texts: tuple[str, ...]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """Class names, in GLUE's order; none where the label is a number."""
    splits: tuple[tuple[str, str], ...] = (("validation", "validation"),)


_ENTAILED = ("entailment", "not_entailment")

TASKS = {
    "cola": Task(("sentence",), ("matthews_correlation",), ("unacceptable", "acceptable")),
    "sst2": Task(("sentence",), ("accuracy",), ("negative", "positive")),
    "mrpc": Task(("sentence1", "sentence2"), ("accuracy", "f1"), ("not_equivalent", "equivalent")),
    "stsb": Task(("sentence1", "sentence2"), ("pearson", "spearman")),
    "qqp": Task(("question1", "question2"), ("accuracy", "f1"), ("not_duplicate", "duplicate")),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("accuracy",),
        ("entailment", "neutral", "contradiction"),
        (("matched", "validation_matched"), ("mismatched", "validation_mismatched")),
    ),
    "qnli": Task(("question", "sentence"), ("accuracy",), _ENTAILED),
    "rte": Task(("sentence1", "sentence2"), ("accuracy",), _ENTAILED),
    "wnli": Task(("sentence1", "sentence2"), ("accuracy",), ("not_entailment", "entailment")),
    "single": Task(("sentence",), ("accuracy", "macro_f1"), ("no", "yes")),
    "pair": Task(("sentence1", "sentence2"), ("accuracy", "macro_f1"), ("no", "yes")),
}

_REGRESSION = ("pearson", "spearman", "mse")


class GlueOptions(TaskOptions):
    """Options of `glue`."""

    name: Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "single", "pair"] = Field(
        description="A GLUE task; or 'single' or 'pair' for one's own data of one or two sentences."
    )
    max_length: Count = Field(default=128, le=1_000_000, description="Tokens a row is cut off at.")
    regression: bool = Field(
        default=False,
        description="The label is a number, not a class; for 'single' and 'pair' ('stsb' always is).",
    )


class Glue(Recipe):
    """Sentence and sentence-pair classification: the GLUE tasks and anything of their shape.

    Labels are class names, class numbers, or (stsb, or `regression = true`) numbers to predict. A model that
    comes with the same class names in another order keeps its order. MNLI is measured on both of its
    validation splits, each under its own name.
    """

    Options = GlueOptions
    options: GlueOptions
    sample_settings: ClassVar = {
        "train.learning_rate": 1e-3,
        "train.epochs": 4,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }

    @property
    def task(self) -> Task:
        """The table entry of the task."""
        return TASKS[self.options.name]

    @property
    def regression(self) -> bool:
        """Whether a number is predicted instead of a class."""
        return self.options.regression or not self.task.labels

    @property
    def smooths_labels(self) -> bool:  # type: ignore[override]  # a fact about the class there, about the task here
        """Whether there are classes."""
        return not self.regression

    def metrics(self) -> dict[str, Direction]:
        """GLUE's own metrics of the task."""
        if self.options.regression:
            return {"pearson": "max", "spearman": "max", "mse": "min"}
        return dict.fromkeys(self.task.metrics, "max")

    def columns(self) -> dict[str, Column]:
        """The task's sentences and its label."""
        texts = {name: Column("a sentence") for name in self.task.texts}
        return {**texts, "label": Column("a number" if self.regression else "a class, by name or number")}

    def splits(self) -> dict[str, str]:
        """Training rows and GLUE's validation split or splits."""
        return {"train": "train", **dict(self.task.splits)}

    def sample(self, folder: Path) -> Splits:
        """Sentences with words that give their class away; in pairs, the last sentence has them."""
        from taskrecipe.core.sample_text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        sizes = {name: 512 if name == "train" else 128 for name in self.splits()}
        return {name: self._sample_split(number, size) for number, (name, size) in enumerate(sizes.items())}

    def check(self, splits: Splits) -> None:
        """Labels must be classes that training saw, or finite numbers; sentences must be text."""
        from taskrecipe.core.data.labels import check_numbers, class_names
        from taskrecipe.core.data.text import check_text

        for split, rows in splits.items():
            for column in self.task.texts:
                check_text(rows, split, column)
        if self.regression:
            for split, rows in splits.items():
                check_numbers(rows, split, "label")
        else:
            self.labels = class_names(splits, "label")

    def load_processor(self, source: ModelSource) -> Any:
        """The model's tokenizer; here the model's own order of the labels is taken over, if it has one."""
        from taskrecipe.core.data.labels import align_labels

        self.positive = self.labels[1] if len(self.labels) > 1 else ""
        if self.labels:
            self.labels = align_labels(self.labels, source.config())
        return source.tokenizer()

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize, and number the labels."""
        from taskrecipe.core.data.cache import map_rows
        from taskrecipe.core.data.labels import label_ids

        tokenized = map_rows(rows, self._tokenize, keep=["label"])
        if self.regression:
            return tokenized.rename_column("label", "labels")
        return tokenized.remove_columns("label").add_column("labels", label_ids(rows, "label", self.labels))

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A sequence classifier with the right number of classes and their names."""
        from transformers import AutoModelForSequenceClassification

        if self.regression:
            values: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
        else:
            values = {"id2label": dict(enumerate(self.labels)), "problem_type": "single_label_classification"}
        model: torch.nn.Module = source.model(AutoModelForSequenceClassification, **values)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        """A row counts as one, whatever number it is to predict."""
        return {"loss": float(len(batch["labels"]))}

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The predicted class or number, and the right one."""
        logits = outputs.logits
        predicted = logits.squeeze(-1) if self.regression else logits.argmax(-1)
        return {"predictions": predicted, "references": batch["labels"]}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """GLUE's metrics of the task."""
        from taskrecipe.core.metrics import Classification, Regression

        if self.regression:
            numbers = Regression().compute(**predictions)
        else:
            positive = self.labels.index(self.positive)
            numbers = Classification(classes=len(self.labels), positive=positive).compute(**predictions)
        return {name: numbers[name] for name in self.metrics()}

    def _tokenize(self, rows: dict[str, list[Any]]) -> dict[str, Any]:
        texts = [rows[column] for column in self.task.texts]
        return dict(self.processor(*texts, truncation=True, max_length=self.options.max_length))

    def _sample_split(self, number: int, size: int) -> Dataset:
        import numpy as np
        from datasets import ClassLabel, Dataset, Features, Value

        from taskrecipe.core.sample_text import CUES, class_cues, sentence

        random = np.random.default_rng([self.spec.seed, number])
        *openings, last = self.task.texts
        columns: dict[str, list[Any]] = {name: [sentence(random) for _ in range(size)] for name in openings}
        if self.regression:
            counts = random.integers(0, 5, size)
            columns[last] = [sentence(random, [str(w) for w in random.choice(CUES[0], n)]) for n in counts]
            columns["label"] = [float(n) * 1.25 for n in counts]
            label: Any = Value("float32")
        else:
            classes = random.integers(0, len(self.task.labels), size)
            columns[last] = [sentence(random, class_cues(random, int(c))) for c in classes]
            columns["label"] = [int(c) for c in classes]
            label = ClassLabel(names=list(self.task.labels))
        texts = {name: Value("string") for name in self.task.texts}
        return Dataset.from_dict(columns, features=Features({**texts, "label": label}))
