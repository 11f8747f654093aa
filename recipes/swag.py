"""Multiple choice: of several endings of a text, which one is right?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from taskrecipe import (
    Batch,
    Column,
    Count,
    DataError,
    Direction,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Splits,
    TaskOptions,
)

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource


class SwagOptions(TaskOptions):
    """Options of `swag`."""

    max_length: Count = Field(
        default=128, le=1_000_000, description="Tokens that a text with one ending is truncated to."
    )
    choices: Annotated[int, Field(ge=2, le=1000)] | None = Field(
        default=None, description="How many endings each row has; by default as many as the first training row."
    )


class Swag(Recipe):
    """Multiple choice: which of several endings goes with a text. SWAG, and anything of its shape.

    The endings are in columns `ending0`, `ending1`, … or, as a list, in one column `endings`; every row must have
    equally many. The model sees each as the pair (context, question + ending), gives it a number, and chooses the
    ending with the highest. The label is the number of the right ending, counted from 0.
    """

    Options = SwagOptions
    options: SwagOptions
    smooths_labels = True
    learned = ("choices",)
    length_options: ClassVar = {"max_length": "input_ids"}
    sample_settings: ClassVar = {
        "task.max_length": 64,
        "train.learning_rate": 1e-3,
        "train.epochs": 2,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }
    choices = 0
    """How many endings each row has."""

    @override
    def metrics(self) -> dict[str, Direction]:
        return {"accuracy": "max"}

    @override
    def columns(self) -> dict[str, Column]:
        return {
            "context": Column("the text that every ending is compared with; SWAG calls it sent1"),
            "question": Column("what every ending is put after; SWAG calls it sent2", required=False),
            "ending0": Column("the first ending; the others are in ending1, ending2, …", required=False),
            "endings": Column("all endings as a list, instead of one column each", required=False),
            "label": Column("the number of the right ending, from 0", target=True),
        }

    @override
    def sample(self, folder: Path) -> Splits:
        """Texts with endings; words of one kind give the right one away."""
        from taskrecipe.text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    @override
    def learn(self, rows: Dataset) -> None:
        self.choices = self.options.choices or len(next(_read_endings(rows, "train")))
        if self.choices < 2:
            raise DataError(
                f"there must be at least 2 endings to choose from, not {self.choices}", split="train", row=0
            )

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_text

        check_text(rows, split, "context")
        for number, endings in enumerate(_read_endings(rows, split)):
            self._check_endings(endings, split, number)
        for number, label in enumerate(rows["label"] if "label" in rows.column_names else ()):
            self._check_label(label, split, number)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.text import require_length

        tokenizer = source.tokenizer()
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        from taskrecipe.data import map_rows

        return map_rows(rows, self._tokenize)

    @override
    def lengths(self, rows: Dataset) -> Sequence[int]:
        """Return the length of each row's longest ending with its text."""
        return [max(map(len, choices)) for choices in rows["input_ids"]]

    @override
    def collate(self, rows: list[Row]) -> Batch:
        """Pad all endings of all rows to one width. Their texts are left out."""
        inputs = [name for name in rows[0] if name not in ("labels", "endings")]
        pairs = [{name: row[name][choice] for name in inputs} for row in rows for choice in range(self.choices)]
        batch = {name: values.view(len(rows), self.choices, -1) for name, values in super().collate(pairs).items()}
        if "labels" in rows[0]:
            batch |= super().collate([{"labels": row["labels"]} for row in rows])
        return batch

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForMultipleChoice

        model: torch.nn.Module = source.model(AutoModelForMultipleChoice)
        return model

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        return {"ending": outputs.logits.argmax(-1), "probabilities": outputs.logits.softmax(-1)}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        from taskrecipe.metrics import Classification

        metric = Classification(classes=self.choices, positive=1)
        return {"accuracy": metric.compute(predictions=predictions["ending"], references=rows["labels"])["accuracy"]}

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        ending = int(prediction["ending"])
        probabilities = [float(probability) for probability in prediction["probabilities"]]
        return {"ending": ending, "text": row["endings"][ending], "probabilities": probabilities}

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        right = zip(predictions["ending"], rows["labels"], strict=True)
        return {"accuracy": [float(ending == label) for ending, label in right]}

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        if "labels" not in row:
            return Judgment()
        right, ending = int(row["labels"]), int(prediction["ending"])
        reference = {"ending": right, "text": row["endings"][right]}
        return Judgment(reference, float(prediction["probabilities"][ending]), ending == right)

    @override
    def describe(self, example: Row) -> DescribedText:
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens

        right = int(example["labels"]) if "labels" in example else None
        label = {} if right is None else {"label": str(right)}
        lines = [describe_tokens(ids, self.processor) for ids in example["input_ids"]]
        names = [f"ending {number}{' (right)' if number == right else ''}" for number in range(len(lines))]
        return DescribedText(lines, label, names)

    @override
    def count_classes(self, rows: Dataset) -> dict[str, int]:
        from taskrecipe.data import count_labels

        return count_labels(rows, [f"ending {number}" for number in range(self.choices)])

    def _check_endings(self, endings: Sequence[Any], split: str, row: int) -> None:
        given = [ending for ending in endings if isinstance(ending, str) and ending.strip()]
        if len(given) != self.choices or len(endings) != self.choices:
            raise DataError(
                f"every row must have {self.choices} endings that are not empty; this one has {len(given)}. "
                "Correct the row, or set [task].choices",
                split=split,
                row=row,
            )

    def _check_label(self, label: Any, split: str, row: int) -> None:
        if _as_number(label) not in range(self.choices):
            raise DataError(
                f"a label is the number of the right ending, 0 to {self.choices - 1}; found {label!r}",
                split=split,
                row=row,
                column="label",
            )

    def _tokenize(self, rows: dict[str, list[Any]]) -> dict[str, Any]:
        questions = rows.get("question", [""] * len(rows["context"]))
        endings = list(_zip_endings(rows))
        first = [context for context in rows["context"] for _ in range(self.choices)]
        second = [
            f"{question or ''} {ending}".strip()
            for question, row in zip(questions, endings, strict=True)
            for ending in row
        ]
        flat = self.processor(first, second, truncation=True, max_length=self.options.max_length)
        grouped = {
            name: [values[i : i + self.choices] for i in range(0, len(values), self.choices)]
            for name, values in flat.items()
        }
        labels = {"labels": [_as_number(label) for label in rows["label"]]} if "label" in rows else {}
        return {**grouped, "endings": endings, **labels}

    def _sample_split(self, number: int, size: int) -> Dataset:
        import numpy as np
        from datasets import Dataset

        from taskrecipe.text import CUES, class_cues, sentence

        random = np.random.default_rng([self.spec.seed, number])
        choices = self.options.choices or 4
        rows = []
        for _ in range(size):
            label, wrong = int(random.integers(choices)), random.integers(1, len(CUES), choices)
            cues = [class_cues(random, 0 if i == label else int(wrong[i])) for i in range(choices)]
            rows.append(
                {
                    "context": sentence(random),
                    "question": sentence(random, length=2),
                    **{f"ending{i}": sentence(random, words, length=4) for i, words in enumerate(cues)},
                    "label": label,
                }
            )
        return Dataset.from_list(rows)


def _read_endings(rows: Dataset, split: str) -> Iterator[Sequence[Any]]:
    """Yield the endings of each row, from one column or several."""
    if not {"endings", "ending0"} & set(rows.column_names):
        found = ", ".join(rows.column_names)
        raise DataError(f"there is neither a column ending0 nor a column endings; found {found}", split=split)
    return _zip_endings({name: rows[name] for name in rows.column_names})


def _zip_endings(columns: dict[str, Any]) -> Iterator[Sequence[Any]]:
    if "endings" in columns:
        return (row or () for row in columns["endings"])
    numbered = takewhile(lambda name: name in columns, map("ending{}".format, count()))
    return zip(*(columns[name] for name in numbered), strict=True)


def _as_number(label: Any) -> int | None:
    """Return the label as a whole number, which some data sets write as text; None if it isn't one."""
    if isinstance(label, str):
        return int(label) if label.strip().isdecimal() else None
    return label if isinstance(label, int) and not isinstance(label, bool) else None
