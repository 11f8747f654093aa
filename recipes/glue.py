"""The GLUE tasks, and any data of their shape: one or two sentences, and a class or a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from taskrecipe import (
    Batch,
    Column,
    Count,
    Direction,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    TaskOptions,
)

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource


@dataclass(frozen=True)
class Task:
    """What a GLUE task reads and what it reports."""

    texts: tuple[str, ...]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """Class names in GLUE's order; none where the label is a number."""
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


class GlueOptions(TaskOptions):
    """Options of `glue`."""

    name: Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "single", "pair"] = Field(
        description="A GLUE task; or 'single' or 'pair' for your own data of one or two sentences."
    )
    max_length: Count = Field(default=128, le=1_000_000, description="Tokens that a row is truncated to.")
    regression: bool = Field(
        default=False,
        description="The label is a number, not a class; for 'single' and 'pair' ('stsb' always is).",
    )


class Glue(Recipe):
    """Sentence and sentence-pair classification: the GLUE tasks and anything of their shape.

    Labels are class names, class numbers, or (stsb, or `regression = true`) numbers to predict. Numbers of a GLUE task
    get GLUE's names. A model that comes with the same class names in another order keeps its order. MNLI is evaluated
    on both of its validation splits, each under its own name.
    """

    Options = GlueOptions
    options: GlueOptions
    learned = ("labels", "positive")
    length_options: ClassVar = {"max_length": "input_ids"}
    sample_settings: ClassVar = {
        "train.learning_rate": 1e-3,
        "train.epochs": 4,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }
    positive = ""
    """The class whose F1 is reported: the second one of the data."""

    @property
    def task(self) -> Task:
        """The table entry of the task."""
        return TASKS[self.options.name]

    @property
    def regression(self) -> bool:
        """Whether a number is predicted instead of a class."""
        return self.options.regression or not self.task.labels

    @property
    def smooths_labels(self) -> bool:  # type: ignore[override]  # here it depends on the task, not on the class alone
        """Whether there are classes."""
        return not self.regression

    @override
    def metrics(self) -> dict[str, Direction]:
        if self.options.regression:
            return {"pearson": "max", "spearman": "max", "mse": "min"}
        return dict.fromkeys(self.task.metrics, "max")

    @override
    def columns(self) -> dict[str, Column]:
        texts = {name: Column("a sentence") for name in self.task.texts}
        label = "a number" if self.regression else "a class, by name or number"
        return {**texts, "label": Column(label, target=True)}

    @override
    def splits(self) -> dict[str, str]:
        return {"train": "train", **dict(self.task.splits)}

    @override
    def sample(self, folder: Path) -> Splits:
        """Sentences with words that give their class away; in pairs, the last sentence has them."""
        from taskrecipe.text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        sizes = {name: 512 if name == "train" else 128 for name in self.splits()}
        return {name: self._sample_split(number, size) for number, (name, size) in enumerate(sizes.items())}

    @override
    def learn(self, rows: Dataset) -> None:
        from taskrecipe.data import learn_classes

        if not self.regression:
            self.labels = learn_classes(rows, "label", self._numbered)
            self.positive = self.labels[1]

    @property
    def _numbered(self) -> tuple[str, ...]:
        """GLUE's names of class numbers; none if the data is your own, or was found to have other classes."""
        is_own = self.options.name in ("single", "pair")
        is_other = bool(self.labels) and set(self.labels) != set(self.task.labels)
        return () if is_own or is_other else self.task.labels

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_classes, check_numbers, check_text

        for column in self.task.texts:
            check_text(rows, split, column)
        if self.regression:
            check_numbers(rows, split, "label")
        else:
            check_classes(rows, split, "label", self.labels, self._numbered)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.data import align_labels
        from taskrecipe.text import require_length

        if self.labels:
            self.labels = align_labels(self.labels, source.config())
        tokenizer = source.tokenizer()
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        from taskrecipe.data import add_labels, map_rows

        if not self.regression:
            return add_labels(map_rows(rows, self._tokenize), rows, "label", self.labels, self._numbered)
        made = map_rows(rows, self._tokenize, keep=["label"])
        return made.rename_column("label", "labels") if "label" in made.column_names else made

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForSequenceClassification

        if self.regression:
            values: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
        else:
            values = {"id2label": dict(enumerate(self.labels)), "problem_type": "single_label_classification"}
        model: torch.nn.Module = source.model(AutoModelForSequenceClassification, **values)
        return model

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["labels"]))}  # a row counts as one, whatever number it is to predict

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        if self.regression:
            return {"value": outputs.logits.squeeze(-1)}
        return {"label": outputs.logits.argmax(-1), "probabilities": outputs.logits.softmax(-1)}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        from taskrecipe.metrics import Classification, Regression

        if self.regression:
            numbers = Regression().compute(predictions=predictions["value"], references=rows["labels"])
        else:
            metric = Classification(classes=len(self.labels), positive=self.labels.index(self.positive))
            numbers = metric.compute(predictions=predictions["label"], references=rows["labels"])
        return self._choose_metrics(numbers)

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        if self.regression:
            return {"value": float(prediction["value"])}
        probabilities = dict(zip(self.labels, map(float, prediction["probabilities"]), strict=True))
        return {"label": self.labels[int(prediction["label"])], "probabilities": probabilities}

    @override
    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not self.regression:
            return super().row_losses(outputs, batch)
        errors = (outputs.logits.squeeze(-1) - batch["labels"]).square()
        return errors, errors.new_ones(len(errors))

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        import numpy as np

        if not self.options.regression:
            return super().row_scores(predictions, rows)
        errors = np.square(np.asarray(predictions["value"], dtype=np.float64) - np.asarray(rows["labels"]))
        return {"mse": errors.tolist()}

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        import numpy as np

        from taskrecipe.metrics import score_confusion, score_regression

        right = np.asarray(rows["labels"])
        if self.regression:
            values = np.asarray(predictions["value"], dtype=np.float64)
            return lambda chosen: self._choose_metrics(score_regression(values[chosen], right[chosen]))
        count, positive = len(self.labels), self.labels.index(self.positive)
        pairs = right * count + np.asarray(predictions["label"])

        def score(chosen: np.ndarray[Any, Any]) -> dict[str, float]:
            table = np.bincount(pairs[chosen], minlength=count * count).reshape(count, count)
            return self._choose_metrics(score_confusion(table, positive))

        return score

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        if not self.regression:
            return super().judge(prediction, row)
        return Judgment({"value": float(row["labels"])})

    @override
    def describe(self, example: Row) -> DescribedText:
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens, split_pair

        label = {"label": self._label_name(example["labels"])} if "labels" in example else {}
        pieces = describe_tokens(example["input_ids"], self.processor)
        lines = split_pair(pieces, self.processor) if len(self.task.texts) == 2 else [pieces]
        return DescribedText(lines, label, list(self.task.texts) if len(lines) == 2 else [], joined=True)

    def _choose_metrics(self, numbers: dict[str, float]) -> dict[str, float]:
        return {name: numbers[name] for name in self.metrics() if name in numbers}  # a subclass may add some

    def _label_name(self, label: Any) -> str:
        return f"{float(label):g}" if self.regression else self.labels[int(label)]

    def _tokenize(self, rows: dict[str, list[Any]]) -> dict[str, Any]:
        from taskrecipe.text import encode_texts

        texts = [rows[column] for column in self.task.texts]
        return encode_texts(self.processor, *texts, max_length=self.options.max_length)

    def _sample_split(self, number: int, size: int) -> Dataset:
        import numpy as np
        from datasets import ClassLabel, Dataset, Features, Value

        from taskrecipe.text import CUES, class_cues, sentence

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
