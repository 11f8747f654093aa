"""Extractive question answering: the span of a text that answers a question."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from taskrecipe.contrib import spans, squad
from taskrecipe.core.errors import DataError, UsageError
from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits
from taskrecipe.core.spec.table import Count, TaskOptions

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

TARGETS = ("start_positions", "end_positions", "places")
"""What a batch has besides the model's inputs."""


class AnsweringOptions(TaskOptions):
    """Options of `question_answering`."""

    max_length: Count = Field(
        default=384, le=1_000_000, description="Tokens of a window, which holds the question and a part of the context."
    )
    stride: Count = Field(
        default=128,
        le=1_000_000,
        validate_default=True,
        description="Tokens of context that two neighbouring windows share.",
    )
    max_answer: Count = Field(default=30, le=100_000, description="Tokens an answer has at most.")
    no_answer: bool = Field(default=False, description="Whether a question may have no answer, as in SQuAD 2.0.")
    threshold: float = Field(
        default=0.0,
        ge=-1e6,
        le=1e6,
        description="With no_answer: by how much the score of no answer must exceed the best span's to be preferred.",
    )

    @field_validator("stride")
    @classmethod
    def _leaves_room(cls, stride: int, info: ValidationInfo) -> int:
        if stride >= info.data.get("max_length", math.inf):
            raise ValueError(f"stride = {stride} must be less than max_length = {info.data['max_length']}")
        return stride


class QuestionAnswering(Recipe):
    """Extractive question answering (SQuAD 1.1 and 2.0): the span of a context that answers a question.

    A context longer than the model takes is cut into windows that overlap; a row that is trained on, and counted by
    `batch_size`, is a window. In a window without the answer, the model learns to point at its first token. The
    prediction is the best of all spans of all windows of an example; with `no_answer`, none if pointing at nothing
    scores higher, and the scores are then also given apart. They are those of SQuAD's official scripts, in percent.
    """

    Options = AnsweringOptions
    options: AnsweringOptions
    smooths_labels = True
    sample_settings: ClassVar = {
        "task.max_length": 40,
        "task.stride": 12,
        "train.learning_rate": 1e-3,
        "train.epochs": 2,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }

    def metrics(self) -> dict[str, Direction]:
        """F1 and exact match; with `no_answer` also apart, for questions with an answer and without."""
        apart = ("has_answer_f1", "has_answer_exact_match", "no_answer_accuracy") if self.options.no_answer else ()
        return dict.fromkeys(("f1", "exact_match", *apart), "max")

    def columns(self) -> dict[str, Column]:
        """A question, a text, and the answers in it."""
        return {
            "question": Column("a question"),
            "context": Column("the text that the answer is a part of"),
            "answers": Column("{text: [...], answer_start: [...]}: right answers, and the characters they begin at"),
        }

    def sample(self, folder: Path) -> Splits:
        """Contexts with phrases of several kinds, of which those of one kind are always the answer."""
        from taskrecipe.core.sample_text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    def check(self, splits: Splits) -> None:
        """Questions and contexts must be text, and every answer must stand in its context where it says."""
        from taskrecipe.core.data.text import check_text

        for split, rows in splits.items():
            _check_shape(rows, split)
            for column in ("question", "context"):
                check_text(rows, split, column)
            for number, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True)):
                if problem := self._problem(context, answers):
                    raise DataError(problem, split=split, row=number, column="answers")

    def load_processor(self, source: ModelSource) -> Any:
        """The model's tokenizer, which must know where in a text a token is."""
        from taskrecipe.core.fit import require_length

        tokenizer = source.tokenizer()
        if not tokenizer.is_fast:
            raise UsageError("question_answering needs a fast tokenizer, which knows where in a text a token is")
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Cut every example into windows, with the answer's place in each."""
        from taskrecipe.core.data.cache import map_rows

        numbered = rows.add_column("example", list(range(len(rows))))
        return map_rows(numbered, partial(self._windows, split=split))

    def collate(self, rows: list[Row]) -> Batch:
        """Pad what the model takes, and what is needed to find the answer; texts stay behind."""
        return super().collate(
            [{k: v for k, v in row.items() if k not in ("example", "context", "answers")} for row in rows]
        )

    def padding(self) -> dict[str, int]:
        """Padding is nowhere in the context."""
        return {**super().padding(), "places": -1}

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A model that points at a first and a last token."""
        from transformers import AutoModelForQuestionAnswering

        model: torch.nn.Module = source.model(AutoModelForQuestionAnswering)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        """A window counts as one."""
        return {"loss": float(len(batch["input_ids"]))}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """Cross entropy of the first and of the last token; smoothed in training only."""
        outputs = model(**{name: value for name, value in batch.items() if name not in TARGETS})
        smoothing = self.spec.train.label_smoothing if model.training else 0.0
        # Padding is no place to point at: it would make the loss depend on which windows share a batch.
        seen = batch["attention_mask"].bool()
        first = spans.pointing_loss(outputs.start_logits, batch["start_positions"], seen, smoothing)
        last = spans.pointing_loss(outputs.end_logits, batch["end_positions"], seen, smoothing)
        return Loss({"loss": (first + last) / 2}, outputs)

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The best span of each window, by its characters, and the scores of it and of no answer."""
        import torch

        places = batch["places"]
        window = torch.arange(len(places), device=places.device)
        starts, ends = outputs.start_logits.float(), outputs.end_logits.float()
        score, first, last = spans.best_spans(starts, ends, places[..., 0] >= 0, self.options.max_answer)
        nowhere = (batch["input_ids"] == self._pointed_at_for_nothing).int().argmax(-1)
        return {
            "score": score,
            "begin": places[window, first, 0],
            "end": places[window, last, 1],
            "nothing": starts[window, nowhere] + ends[window, nowhere],
        }

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """The best span over the windows of each example, against its right answers."""
        beginnings = np.flatnonzero(np.diff(rows["example"], prepend=-1))
        examples = rows.select_columns(["context", "answers"]).select(beginnings)
        windows = np.split(np.arange(len(rows)), beginnings[1:])
        predicted = [
            self._answer(predictions, window, context)
            for window, context in zip(windows, examples["context"], strict=True)
        ]
        compare = squad.scores_with_silence if self.options.no_answer else squad.scores
        return compare(predicted, examples["answers"])

    def _answer(self, predictions: dict[str, Any], windows: NDArray[np.int64], context: str) -> str:
        best = windows[np.argmax(predictions["score"][windows])]
        margin = predictions["nothing"][windows].min() - predictions["score"][best]
        if self.options.no_answer and margin > self.options.threshold:
            return squad.NO_ANSWER
        return context[predictions["begin"][best] : predictions["end"][best]]

    def _problem(self, context: str, answers: Row | None) -> str | None:
        """What is wrong with a row's answers, if anything is."""
        texts, starts = _given(answers, "text"), _given(answers, "answer_start")
        if len(texts) != len(starts):
            return f"every answer needs the character it begins at; found {len(texts)} answers and {len(starts)} places"
        if not texts and not self.options.no_answer:
            return "there is no answer; if that may be so, set [task].no_answer = true"
        for text, start in zip(texts, starts, strict=True):
            if not (text and isinstance(start, int) and start >= 0 and context.startswith(text, start)):
                return f"answer {text!r} does not stand at character {start} of the context"
        return None

    @property
    def _pointed_at_for_nothing(self) -> int:
        """The token that stands for no answer; where a tokenizer has none such, the first token of the window does."""
        token = self.processor.cls_token_id
        return -1 if token is None else int(token)

    def _windows(self, rows: dict[str, list[Any]], split: str) -> dict[str, Any]:
        questions = [question.lstrip() for question in rows["question"]]
        self._require_room(questions, rows["example"], split)
        tokens = self.processor(
            questions,
            rows["context"],
            truncation="only_second",
            max_length=self.options.max_length,
            stride=self.options.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        offsets, owners = tokens.pop("offset_mapping"), tokens.pop("overflow_to_sample_mapping")
        places = [
            np.where(np.array([part == 1 for part in tokens.sequence_ids(window)])[:, None], offsets[window], -1)
            for window in range(len(owners))
        ]
        pointers = [
            self._pointers(ids, place, rows["answers"][owner])
            for ids, place, owner in zip(tokens["input_ids"], places, owners, strict=True)
        ]
        begins = np.diff(owners, prepend=-1) != 0  # an example's texts are kept once, with its first window
        return {
            **tokens,
            "places": places,
            "start_positions": [first for first, _ in pointers],
            "end_positions": [last for _, last in pointers],
            "example": [rows["example"][owner] for owner in owners],
            "context": [rows["context"][owner] if new else "" for owner, new in zip(owners, begins, strict=True)],
            "answers": [
                _given(rows["answers"][owner], "text") if new else [] for owner, new in zip(owners, begins, strict=True)
            ],
        }

    def _pointers(self, ids: list[int], places: NDArray[Any], answers: Row | None) -> tuple[int, int]:
        """The first and last token of the first answer; those that stand for no answer, if it isn't in the window."""
        texts, begins = _given(answers, "text"), _given(answers, "answer_start")
        found = spans.locate(places, begins[0], begins[0] + len(texts[0])) if texts else None
        nowhere = int(np.argmax(np.equal(ids, self._pointed_at_for_nothing)))
        return found or (nowhere, nowhere)

    def _require_room(self, questions: list[str], numbers: list[int], split: str) -> None:
        """Refuse a question so long that no window has room for new context."""
        room = self.options.max_length - self.options.stride - self.processor.num_special_tokens_to_add(pair=True)
        lengths = map(len, self.processor(questions, add_special_tokens=False)["input_ids"])
        for number, length in zip(numbers, lengths, strict=True):
            if length >= room:
                raise DataError(
                    f"the question has {length} tokens; with [task].max_length = {self.options.max_length} and "
                    f"stride = {self.options.stride}, fewer than {room} leave room for the context",
                    split=split,
                    row=number,
                    column="question",
                )

    def _sample_split(self, number: int, size: int) -> Dataset:
        from datasets import Dataset

        random = np.random.default_rng([self.spec.seed, number])
        return Dataset.from_list([self._sample_row(random) for _ in range(size)])

    def _sample_row(self, random: np.random.Generator) -> Row:
        from taskrecipe.core.sample_text import CUES, WORDS, sentence

        phrases = [
            " ".join(map(str, (random.choice(cues[:2]), random.choice(WORDS), random.choice(cues[2:]))))
            for cues in CUES
        ]
        answerable = not self.options.no_answer or random.random() < 0.5
        held = random.permutation([0 if answerable else 1, 2])
        context = " ".join(f"{sentence(random, length=16)} {phrases[kind]}" for kind in held)
        texts = [phrases[0]] if answerable else []
        return {
            "question": sentence(random, length=4),
            "context": f"{context} {sentence(random)}",
            "answers": {"text": texts, "answer_start": [context.index(text) for text in texts]},
        }


def _given(answers: Row | None, key: str) -> list[Any]:
    """What there is of answers; nothing may also be written as null."""
    return (answers or {}).get(key) or []


def _check_shape(rows: Dataset, split: str) -> None:
    """Refuse answers of another shape than SQuAD's."""
    found = rows.features["answers"]
    lists = (
        [getattr(found.get(key), "feature", None) for key in ("text", "answer_start")]
        if isinstance(found, dict)
        else []
    )
    kinds = [str(getattr(inner, "dtype", inner)) for inner in lists]
    # Where no row has an answer, lists are of nothing.
    if not kinds or not re.fullmatch("(large_)?string|null", kinds[0]) or not re.fullmatch(r"u?int\d+|null", kinds[1]):
        raise DataError(
            f"answers must be {{text: [...], answer_start: [...]}}, texts and whole numbers; found {found}",
            split=split,
            column="answers",
        )
