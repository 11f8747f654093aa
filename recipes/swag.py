"""Multiple choice: of several endings of a text, which one is right?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from taskrecipe.core.errors import DataError
from taskrecipe.core.recipe import Batch, Column, Direction, Recipe, Row, Splits
from taskrecipe.core.spec.table import Count, TaskOptions

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource


class SwagOptions(TaskOptions):
    """Options of `swag`."""

    max_length: Count = Field(default=128, le=1_000_000, description="Tokens a text with one ending is cut off at.")
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
    sample_settings: ClassVar = {
        "task.max_length": 64,
        "train.learning_rate": 1e-3,
        "train.epochs": 2,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }

    def metrics(self) -> dict[str, Direction]:
        """The share of rows with the right ending chosen."""
        return {"accuracy": "max"}

    def columns(self) -> dict[str, Column]:
        """A text, its endings, and which of them is right."""
        return {
            "context": Column("the text that every ending is compared with; SWAG calls it sent1"),
            "question": Column("what every ending is put after; SWAG calls it sent2", required=False),
            "ending0": Column("the first ending; the others are in ending1, ending2, …", required=False),
            "endings": Column("all endings as a list, instead of one column each", required=False),
            "label": Column("the number of the right ending, from 0"),
        }

    def sample(self, folder: Path) -> Splits:
        """Texts with endings; words of one kind give the right one away."""
        from taskrecipe.core.sample_text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    def check(self, splits: Splits) -> None:
        """Contexts must be text; every row needs all its endings, and the number of one of them."""
        from taskrecipe.core.data.text import check_text

        self.choices = self.options.choices or len(next(_endings(splits["train"], "train")))
        if self.choices < 2:
            raise DataError(
                f"there must be at least 2 endings to choose from, not {self.choices}", split="train", row=0
            )
        for split, rows in splits.items():
            check_text(rows, split, "context")
            for number, endings in enumerate(_endings(rows, split)):
                self._check_endings(endings, split, number)
            for number, label in enumerate(rows["label"]):
                self._check_label(label, split, number)

    def load_processor(self, source: ModelSource) -> Any:
        """The model's tokenizer."""
        from taskrecipe.core.fit import require_length

        tokenizer = source.tokenizer()
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize every ending together with its text."""
        from taskrecipe.core.data.cache import map_rows

        return map_rows(rows, self._tokenize)

    def lengths(self, rows: Dataset) -> Sequence[int]:
        """The length of each row's longest ending with its text."""
        return [max(map(len, choices)) for choices in rows["input_ids"]]

    def collate(self, rows: list[Row]) -> Batch:
        """Pad all endings of all rows to one width."""
        from taskrecipe.core.collate import pad

        inputs = [name for name in rows[0] if name != "labels"]
        endings = [{name: row[name][choice] for name in inputs} for row in rows for choice in range(self.choices)]
        batch = {
            name: values.view(len(rows), self.choices, -1) for name, values in pad(endings, self.padding()).items()
        }
        return {**batch, **pad([{"labels": row["labels"]} for row in rows], {})}

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A model that gives each ending a number."""
        from transformers import AutoModelForMultipleChoice

        model: torch.nn.Module = source.model(AutoModelForMultipleChoice)
        return model

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The ending with the highest number, and the right one."""
        return {"predictions": outputs.logits.argmax(-1), "references": batch["labels"]}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """Accuracy."""
        from taskrecipe.core.metrics import Classification

        numbers = Classification(classes=self.choices, positive=1).compute(**predictions)
        return {"accuracy": numbers["accuracy"]}

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
        if _number(label) not in range(self.choices):
            raise DataError(
                f"a label is the number of the right ending, 0 to {self.choices - 1}; found {label!r}",
                split=split,
                row=row,
                column="label",
            )

    def _tokenize(self, rows: dict[str, list[Any]]) -> dict[str, Any]:
        questions = rows.get("question", [""] * len(rows["context"]))
        endings = list(_rows_of_endings(rows))
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
        return {**grouped, "labels": [_number(label) for label in rows["label"]]}

    def _sample_split(self, number: int, size: int) -> Dataset:
        import numpy as np
        from datasets import Dataset

        from taskrecipe.core.sample_text import CUES, class_cues, sentence

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


def _endings(rows: Dataset, split: str) -> Iterator[Sequence[Any]]:
    """The endings of each row, wherever they are."""
    if not {"endings", "ending0"} & set(rows.column_names):
        found = ", ".join(rows.column_names)
        raise DataError(f"there is neither a column ending0 nor a column endings; found {found}", split=split)
    return _rows_of_endings({name: rows[name] for name in rows.column_names})


def _rows_of_endings(columns: dict[str, Any]) -> Iterator[Sequence[Any]]:
    if "endings" in columns:
        return (row or () for row in columns["endings"])
    numbered = takewhile(lambda name: name in columns, map("ending{}".format, count()))
    return zip(*(columns[name] for name in numbered), strict=True)


def _number(label: Any) -> int | None:
    """The label as a whole number, which some data sets write as text."""
    if isinstance(label, str):
        return int(label) if label.strip().isdecimal() else None
    return label if isinstance(label, int) and not isinstance(label, bool) else None
