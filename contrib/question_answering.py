"""Extractive question answering: the span of a text that answers a question."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import override

from taskrecipe import (
    Batch,
    Column,
    Count,
    CutsRows,
    DataError,
    Direction,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Splits,
    TaskOptions,
    UsageError,
)
from taskrecipe.contrib import spans, squad

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource

KEPT_BACK = ("start_positions", "end_positions", "places")
"""What a batch has besides the model's inputs."""

TEXTS = ("example", "context", "context_start", "answers")
"""What a row has besides its batch: the number of its example, its part of the context, and the right answers."""

CANDIDATES = 5
"""Spans that are kept of each window, and of each example."""

SPAN_KEYS = {"score": "score", "begin": "start", "end": "end"}
"""What predictions call the score and the characters of a span, and what candidates call them."""

NO_SPAN = {"answer": squad.NO_ANSWER, "start": None, "end": None, "score": None}


class AnsweringOptions(TaskOptions):
    """Options of `question_answering`."""

    max_length: Count = Field(
        default=384, le=1_000_000, description="Tokens of a window, which holds the question and a part of the context."
    )
    stride: Count = Field(
        default=128,
        le=1_000_000,
        validate_default=True,
        description="Tokens of context that two neighboring windows share.",
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


class QuestionAnswering(Recipe, CutsRows):
    """Extractive question answering (SQuAD 1.1 and 2.0): the span of a context that answers a question.

    A context longer than the model takes is cut into windows that overlap. A row that is trained on, and counted by
    `batch_size`, is a window. In a window without the answer, the model learns to point at its first token. The
    answer is the best of all spans of all windows of an example. With `no_answer`, there is none if pointing at
    nothing scores higher, and questions with an answer and without are also scored apart. The scores are those of
    SQuAD's official scripts, in percent.
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

    @override
    def metrics(self) -> dict[str, Direction]:
        apart = ("has_answer_f1", "has_answer_exact_match", "no_answer_accuracy") if self.options.no_answer else ()
        return dict.fromkeys(("f1", "exact_match", *apart), "max")

    @override
    def columns(self) -> dict[str, Column]:
        answers = "{text: [...], answer_start: [...]}: right answers, and the characters they begin at"
        return {
            "question": Column("a question"),
            "context": Column("the text that the answer is a part of"),
            "answers": Column(answers, target=True),
        }

    @override
    def sample(self, folder: Path) -> Splits:
        """Contexts with phrases of several kinds, of which those of one kind are always the answer."""
        from taskrecipe.text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_text

        for column in ("question", "context"):
            check_text(rows, split, column)
        if "answers" in rows.column_names:
            squad.check_answers(rows, split, required=not self.options.no_answer)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.text import require_length

        tokenizer = source.tokenizer()
        if not tokenizer.is_fast:
            raise UsageError("question_answering needs a fast tokenizer, which knows where in a text a token is")
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Cut every example into windows. Each keeps its own part of the context and the answer's place in it."""
        from taskrecipe.data import map_rows

        numbered = rows.add_column("example", list(range(len(rows))))
        # Answers keep the type of their column: it can't be seen in rows that have none.
        return map_rows(numbered, partial(self._cut_windows, split=split), keep=["answers"])

    @override
    def collate(self, rows: list[Row]) -> Batch:
        """Pad what the model takes, and what is needed to find the answer. Texts are left out."""
        return super().collate([{k: v for k, v in row.items() if k not in TEXTS} for row in rows])

    @override
    def padding(self) -> dict[str, int]:
        return {**super().padding(), "places": -1}  # padding has no place in the context

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForQuestionAnswering

        model: torch.nn.Module = source.model(AutoModelForQuestionAnswering)
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        return model(**{name: value for name, value in batch.items() if name not in KEPT_BACK})

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["input_ids"]))}

    @override
    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        """Return the mean of two cross entropies, that of the first and that of the last token."""
        smoothing = self.spec.train.label_smoothing if training else 0.0
        # Padding is no place to point at: it would make the loss depend on which windows share a batch.
        seen = batch["attention_mask"].bool()
        first = spans.pointing_loss(outputs.start_logits, batch["start_positions"], seen, smoothing)
        last = spans.pointing_loss(outputs.end_logits, batch["end_positions"], seen, smoothing)
        return {"loss": (first + last) / 2}

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        """Return the best spans of each window, by their characters in the whole context, and the scores.

        `score`, `begin` and `end` have a value for each of the best spans, the best first. `nothing` is the score of
        no answer.
        """
        import torch

        places = batch["places"]
        window = torch.arange(len(places), device=places.device)
        starts, ends = outputs.start_logits.float(), outputs.end_logits.float()
        score, first, last = spans.best_spans(starts, ends, places[..., 0] >= 0, self.options.max_answer, CANDIDATES)
        nowhere = (batch["input_ids"] == self._no_answer_token).int().argmax(-1)
        return {
            "score": score,
            "begin": places[window[:, None], first, 0],
            "end": places[window[:, None], last, 1],
            "nothing": starts[window, nowhere] + ends[window, nowhere],
        }

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        """Compare the best span over the windows of each example with its right answers."""
        compare = squad.score_with_silence if self.options.no_answer else squad.score_answers
        return compare(*self._pair_answers(predictions, rows))

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        measure = squad.measure_with_silence if self.options.no_answer else squad.measure_answers
        measured = measure(*self._pair_answers(predictions, rows))
        return {name: [100 * value for value in values] for name, values in measured.items()}

    def _pair_answers(self, predictions: Predictions, rows: Dataset) -> tuple[list[str], list[list[str]]]:
        """Return the answer that is predicted for each example, and its right answers."""
        windows = rows.select_columns(list(TEXTS))  # reading tokens and places would take most of the time
        predicted, right = [], []
        for _, group in groupby(enumerate(windows), key=lambda window: window[1]["example"]):
            numbers, members = zip(*group, strict=True)
            found = [{name: values[number] for name, values in predictions.items()} for number in numbers]
            prediction, row = self.merge(found, list(members))
            predicted.append(self.answer(prediction, row)["answer"])
            right.append(squad.read_answers(row["answers"], "text"))
        return predicted, right

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        """Return the best answer in one window, or in all that `merge` joined, by its characters in the context."""
        candidates = [
            {"answer": _cut_text(row, begin, end), "start": begin, "end": end, "score": score}
            for score, begin, end in _spans(prediction)
        ]
        return self._choose_answer(candidates, float(prediction["nothing"]))

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        if "answers" not in row:
            return Judgment()
        right = squad.read_answers(row["answers"], "text") or [squad.NO_ANSWER]
        predicted = self.answer(prediction, row)["answer"]
        correct = any(squad.exact_match(predicted, text) for text in right)
        return Judgment({"answer": right[0], "answers": right}, correct=correct)

    @override
    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
        if "start_positions" not in batch:
            return None
        seen = batch["attention_mask"].bool()
        first = spans.pointing_losses(outputs.start_logits, batch["start_positions"], seen)
        last = spans.pointing_losses(outputs.end_logits, batch["end_positions"], seen)
        return (first + last) / 2, first.new_ones(len(first))

    @override
    def owners(self, rows: Dataset) -> Sequence[int]:
        numbers: Sequence[int] = rows["example"]
        return numbers

    @override
    def merge(self, predictions: list[Row], rows: list[Row]) -> tuple[Row, Row]:
        """Join the windows of an example: the best of their spans, and the context that they are parts of."""
        context = ""
        for row in rows:  # windows overlap
            context += row["context"][len(context) + rows[0]["context_start"] - row["context_start"] :]
        found = [dict(zip(("score", "start", "end"), span, strict=True)) for one in predictions for span in _spans(one)]
        best = spans.merge_candidates([found], CANDIDATES)
        merged = {name: [span[key] for span in best] for name, key in SPAN_KEYS.items()}
        nothing = min(float(one["nothing"]) for one in predictions)
        return {**merged, "nothing": nothing}, {**rows[0], "context": context}

    @override
    def describe(self, example: Row) -> DescribedText:
        """Show the tokens of a window. The answer is marked as the target."""
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens, split_pair

        pieces, facts = describe_tokens(example["input_ids"], self.processor), {}
        if "start_positions" in example:
            first, last = int(example["start_positions"]), int(example["end_positions"])
            facts["answer"] = "not in this window"
            if example["places"][first][0] >= 0:
                facts["answer"] = _cut_text(example, example["places"][first][0], example["places"][last][1])
                pieces[first : last + 1] = [replace(piece, role="target") for piece in pieces[first : last + 1]]
        lines = split_pair(pieces, self.processor)
        return DescribedText(lines, facts, ["question", "context"] if len(lines) == 2 else [], joined=True)

    @override
    def facts(self, rows: Dataset, split: str) -> dict[str, str]:
        if "start_positions" not in rows.column_names:
            return {}
        found = sum(_count_answers(table) for table in rows.with_format("arrow").iter(1000))
        return {"windows with the answer": f"{found:,} of {len(rows):,}"}

    def _choose_answer(self, candidates: list[Row], nothing: float) -> Row:
        """Choose the best of the ranked candidates, or no answer if the spec allows it and its score is higher."""
        chosen: Row = candidates[0] if candidates else NO_SPAN
        if self.options.no_answer and candidates and nothing - chosen["score"] > self.options.threshold:
            chosen = NO_SPAN
        return {**chosen, "no_answer_score": nothing, "candidates": candidates}

    @property
    def _no_answer_token(self) -> int:
        """The token that stands for no answer. Where a tokenizer has none such, the first token of the window does."""
        token = self.processor.cls_token_id
        return -1 if token is None else int(token)

    def _cut_windows(self, rows: dict[str, list[Any]], split: str) -> dict[str, Any]:
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
        parts = [_find_part(place) for place in places]
        made = {
            **tokens,
            "places": places,
            "example": [rows["example"][owner] for owner in owners],
            "context": [rows["context"][owner][part] for owner, part in zip(owners, parts, strict=True)],
            "context_start": [part.start for part in parts],
        }
        return {**made, **self._locate_answers(made, owners, rows["answers"])} if "answers" in rows else made

    def _locate_answers(self, windows: Row, owners: list[int], answers: list[Row | None]) -> dict[str, Any]:
        """Return the first and last token to point at in each window, and the right answers."""
        pointers = [
            self._find_pointers(ids, place, answers[owner])
            for ids, place, owner in zip(windows["input_ids"], windows["places"], owners, strict=True)
        ]
        first_windows = np.diff(owners, prepend=-1) != 0  # the right answers are kept once, with the first window
        return {
            "start_positions": [first for first, _ in pointers],
            "end_positions": [last for _, last in pointers],
            "answers": [answers[owner] if first else None for owner, first in zip(owners, first_windows, strict=True)],
        }

    def _find_pointers(self, ids: list[int], places: NDArray[Any], answers: Row | None) -> tuple[int, int]:
        """Return the first and last token of the first answer; the no-answer token if it isn't in the window."""
        texts, begins = squad.read_answers(answers, "text"), squad.read_answers(answers, "answer_start")
        found = spans.locate_span(places, begins[0], begins[0] + len(texts[0])) if texts else None
        nowhere = int(np.argmax(np.equal(ids, self._no_answer_token)))
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
        from taskrecipe.text import CUES, WORDS, sentence

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


def _spans(prediction: Row) -> Iterator[tuple[float, int, int]]:
    """Yield score, begin and end of each span of a window. A window may have fewer spans than are kept."""
    spans_of_window = zip(*(prediction[name] for name in SPAN_KEYS), strict=True)
    return ((float(score), int(begin), int(end)) for score, begin, end in spans_of_window if math.isfinite(score))


def _count_answers(table: Any) -> int:
    """Count the windows of an Arrow table whose answer begins at a token of the context."""
    import pyarrow.compute as pc

    sizes = pc.list_value_length(table["places"]).to_numpy()
    begins = pc.list_flatten(pc.list_flatten(table["places"])).to_numpy().reshape(-1, 2)[:, 0]
    tokens = np.cumsum(sizes) - sizes + table["start_positions"].to_numpy()
    return int((begins[tokens] >= 0).sum())


def _find_part(places: NDArray[Any]) -> slice:
    """Return the part of the context that a window holds, by its characters."""
    inner = places[places[:, 0] >= 0]
    return slice(int(inner[0, 0]), int(inner[-1, 1])) if len(inner) else slice(0, 0)


def _cut_text(row: Row, begin: int, end: int) -> str:
    """Return the characters from `begin` to `end` of the whole context, of which a row has only its part."""
    text: str = row["context"][begin - row["context_start"] : end - row["context_start"]]
    return text
