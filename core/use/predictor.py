"""Predicting a window of rows: batches of similar length, and an answer for each row.

The batches of a window are those of an evaluation of the same rows, so that numbers agree to the last bit. A smaller
batch size cuts each of them into equal parts that keep its padding, each a power of two and at least 4 rows: then a
CPU multiplies the same matrices in the same order, and the answers are the same bytes at any batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from taskrecipe.errors import DataError
from taskrecipe.optional import CutsRows, EmbedsRows
from taskrecipe.recipe import Batch, Recipe, Row, as_json
from taskrecipe.training.evaluation import to_numpy
from taskrecipe.training.order import evaluation_batches
from taskrecipe.training.randomness import Purpose, make_generator
from taskrecipe.training.setup import evaluation_batch_size
from taskrecipe.use.records import Record
from taskrecipe.use.rows import Pieces, RowMaker
from taskrecipe.use.scores import merge_parts

if TYPE_CHECKING:
    from accelerate import Accelerator
    from PIL.Image import Image

SMALLEST_PART = 4
"""Rows of the smallest part of a batch. For fewer, a CPU multiplies matrices in another order."""

_PIECE = 32
"""The bits of a random stream's number that hold the row; those above hold which piece of the row it is."""


@dataclass
class Outcome:
    """What became of one row: its answer, or what is wrong with it."""

    answer: Any = None
    problem: str | None = None
    images: dict[str, Image] = field(default_factory=dict)
    vectors: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """How rows are predicted, and what is wanted besides their answers."""

    batch_size: int | None = None
    task: str | None = None
    images: bool = False
    vectors: bool = False


class Predictor:
    """Predicts windows of rows with a model that is on its device."""

    def __init__(self, recipe: Recipe, model: torch.nn.Module, accelerator: Accelerator, wanted: Wanted) -> None:
        self.recipe, self.model, self.accelerator, self.wanted = recipe, model, accelerator, wanted
        self.rows = RowMaker(recipe, wanted.task)
        self.makes_examples = type(recipe).example is not Recipe.example
        self.batch_size = evaluation_batch_size(recipe.spec)
        self.largest = wanted.batch_size or recipe.spec.predict.batch_size or self.batch_size
        if accelerator.device.type != "cpu":
            self.batch_size = self.largest  # an accelerator promises no bits, and larger batches are faster there

    def predict(self, records: Sequence[Record], first: int = 0) -> list[Outcome]:
        """Return what became of each record. `first` is the number of the first one among all rows."""
        made, wrong = self.rows.make(records)
        outcomes = [Outcome(problem=wrong.get(number)) for number in range(len(records))]
        for pieces in made:
            found: dict[int, list[tuple[int, Row, Row]]] = {number: [] for number in dict.fromkeys(pieces.numbers)}
            for piece, prediction, row in self._predict_pieces(pieces, outcomes, first):
                found[pieces.numbers[piece]].append((piece, prediction, row))
            for number, parts in found.items():
                if outcomes[number].problem is None:
                    parts.sort(key=lambda part: part[0])
                    self._answer(outcomes[number], [p for _, p, _ in parts], [r for _, _, r in parts])
        if isinstance(self.recipe, CutsRows):
            self._answer_empty_rows(outcomes, made, wrong)
        return outcomes

    def _answer(self, outcome: Outcome, predictions: list[Row], pieces: list[Row]) -> None:
        recipe = self.recipe
        prediction, row = merge_parts(recipe, predictions, pieces)
        outcome.answer = as_json(recipe.answer(prediction, row))
        if self.wanted.images:
            outcome.images = recipe.answer_images(prediction, row)
        if self.wanted.vectors and isinstance(recipe, EmbedsRows):
            outcome.vectors = recipe.vectors(prediction, row)

    def _answer_empty_rows(self, outcomes: list[Outcome], made: list[Pieces], wrong: dict[int, str]) -> None:
        """Say of rows that have no piece, such as blank texts, that nothing is in them to predict."""
        seen = {number for pieces in made for number in pieces.numbers}
        for number, outcome in enumerate(outcomes):
            if number not in seen and number not in wrong:
                outcome.problem = "there is nothing in it to predict"

    def _predict_pieces(self, pieces: Pieces, outcomes: list[Outcome], first: int) -> Iterator[tuple[int, Row, Row]]:
        """Yield each piece's number, its prediction and its preprocessed row."""
        if not len(pieces.rows):
            return
        ranks = _rank_within_rows(pieces.numbers)
        for group in evaluation_batches(len(pieces.rows), self.batch_size, self.recipe.lengths(pieces.rows)):
            chosen, rows, examples = [], [], []
            for piece, row in zip(group.tolist(), pieces.rows.__getitems__(group.tolist()), strict=True):
                number = pieces.numbers[piece]
                try:
                    example = self._make_example(row, first + number + (ranks[piece] << _PIECE))
                except DataError as error:
                    outcomes[number].problem = str(error)
                    continue
                chosen.append(piece)
                rows.append(row)
                examples.append(example)
            if chosen:
                yield from zip(chosen, self._predict_batch(examples), rows, strict=True)

    def _make_example(self, row: Row, number: int) -> Row:
        if not self.makes_examples:
            return row
        random = make_generator(Purpose.EVALUATION, self.recipe.spec.seed, 0, number)
        return self.recipe.example(row, random, training=False)

    @torch.inference_mode()
    def _predict_batch(self, examples: list[Row]) -> list[Row]:
        from accelerate.utils import send_to_device

        whole, found = self.recipe.collate(examples), list[Row]()
        for start, part in _cut_batch(whole, len(examples), self.largest):
            batch = part if self.accelerator.device.type == "cpu" else send_to_device(part, self.accelerator.device)
            predicted = {name: to_numpy(value) for name, value in self.recipe.infer(self.model, batch).items()}
            rows = [dict(zip(predicted, values, strict=True)) for values in zip(*predicted.values(), strict=True)]
            found += rows[len(found) - start :]
        return found or [{} for _ in examples]  # a recipe may predict nothing


def _cut_batch(batch: Batch, size: int, largest: int) -> Iterator[tuple[int, Batch]]:
    """Yield equal parts of a batch, and where each starts. The last one may overlap the one before it."""
    part = max(SMALLEST_PART, 1 << (largest.bit_length() - 1))
    if largest >= size or part >= size:
        yield 0, batch
        return
    for start in range(0, size, part):
        begin = min(start, size - part)
        yield begin, _take_rows(batch, slice(begin, begin + part), size)


def _take_rows(value: Any, rows: slice, size: int) -> Any:
    """Return some rows of a batch: of each tensor and list in it that has a value for every row."""
    if isinstance(value, dict):
        return {name: _take_rows(inner, rows, size) for name, inner in value.items()}
    if isinstance(value, (torch.Tensor, list, tuple)) and len(value) == size:
        return value[rows]
    return value


def _rank_within_rows(numbers: Sequence[int]) -> list[int]:
    """Return which piece of its row each piece is, from 0."""
    seen: dict[int, int] = {}
    ranks = []
    for number in numbers:
        ranks.append(seen.get(number, 0))
        seen[number] = ranks[-1] + 1
    return ranks
