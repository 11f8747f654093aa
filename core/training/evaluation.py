"""Evaluating a split: every row once, at any batch size and number of processes, in flat memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset

from taskrecipe.recipe import Predictions, Recipe, reported_name
from taskrecipe.training.batches import BatchMaker, MicroBatch, Request, load_batches
from taskrecipe.training.exchange import gather_values
from taskrecipe.training.order import evaluation_batches
from taskrecipe.training.sharding import set_mode

Result = TypeVar("Result")

_LOSS, _ITEMS = ".loss", ".items"
"""Kept like predictions: the sum of each row's loss, and how many items it is a sum over."""


class RowLosses(NamedTuple):
    """For each row the sum of its loss, and how many items it is a sum over."""

    sums: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Outcome:
    """What the evaluation of a split has found."""

    split: str
    metrics: dict[str, float]
    """By reported name."""
    predictions: Predictions
    row_losses: RowLosses | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return sum(_measure_size(values) for values in self.predictions.values())


@dataclass
class Tally:
    """What an evaluation keeps of each batch: predictions and sums of losses, never the model's outputs."""

    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    predictions: dict[int, Predictions] = field(default_factory=dict)
    losses: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """The sum of each loss term, and the number of items in it."""

    def add_predictions(self, number: int, batch: MicroBatch, predictions: Predictions) -> None:
        """Keep the predictions of a batch."""
        self.rows[number] = batch.rows
        self.predictions[number] = {key: to_numpy(value) for key, value in predictions.items()}

    def add_loss(self, number: int, batch: MicroBatch, terms: dict[str, torch.Tensor]) -> None:
        """Keep the loss of a batch as a sum, so that the mean over batches of unequal size is exact."""
        self.losses[number] = {
            name: (float(term) * batch.counts[name], batch.counts[name])
            for name, term in terms.items()
            if batch.counts[name]
        }

    def merge_processes(self) -> Tally:
        """Return what all processes have kept, together."""
        whole = Tally()
        for other in gather_values(vars(self)):
            whole.rows |= {number: tuple(rows) for number, rows in other["rows"].items()}
            whole.predictions |= other["predictions"]
            whole.losses |= other["losses"]
        return whole

    def collect(self, size: int) -> Predictions:
        """Return the predictions of all rows in row order; raise unless each of `size` rows was seen once."""
        rows = np.concatenate([np.asarray(self.rows[number]) for number in sorted(self.rows)])
        if len(rows) != size or not np.array_equal(np.sort(rows), np.arange(size)):
            raise RuntimeError(f"an evaluation must see each of {size} rows once, but saw {len(rows)}")
        place = np.argsort(rows)
        return {key: self._collect_key(key, place) for key in next(iter(self.predictions.values()))}

    def loss(self) -> float:
        """Return the sum over terms of each term's mean over all items. How rows were batched doesn't matter."""
        terms: dict[str, list[tuple[float, float]]] = {}
        for number in sorted(self.losses):
            for name, pair in self.losses[number].items():
                terms.setdefault(name, []).append(pair)
        means = [math.fsum(s for s, _ in pairs) / math.fsum(n for _, n in pairs) for pairs in terms.values()]
        return math.fsum(means) if means else math.nan

    def _collect_key(self, key: str, place: np.ndarray[Any, Any]) -> Any:
        parts = [self.predictions[number][key] for number in sorted(self.predictions)]
        if all(isinstance(part, np.ndarray) for part in parts) and len({p.shape[1:] for p in parts}) == 1:
            return np.concatenate(parts)[place]
        flat = [value for part in parts for value in part]
        return [flat[i] for i in place]


@dataclass(frozen=True)
class Evaluation:
    """One split, ready to be evaluated again and again. Rows without targets are only predicted."""

    recipe: Recipe
    split: str
    rows: Dataset
    batch_size: int
    workers: int
    accelerator: Accelerator
    has_targets: bool = True
    keeps_losses: bool = False
    """Whether the loss of each row is kept too."""

    def run(self, model: torch.nn.Module) -> Generator[int, None, Outcome]:
        """Evaluate the model. Yield how many batches are done after each one, and return what was found."""
        tally = yield from self._process(model)
        predictions = tally.collect(len(self.rows))
        losses = RowLosses(predictions.pop(_LOSS), predictions.pop(_ITEMS)) if _LOSS in predictions else None
        metrics = {**self.recipe.score(predictions, self.rows), "loss": tally.loss()}
        named = {reported_name(self.split, name): float(value) for name, value in metrics.items()}
        return Outcome(self.split, named, predictions, losses)

    def predict(self, model: torch.nn.Module) -> Generator[int, None, Predictions]:
        """Predict every row. Yield how many batches are done after each one, and return the predictions."""
        tally = yield from self._process(model)
        return tally.collect(len(self.rows))

    @property
    def batches(self) -> int:
        """The number of batches in the split."""
        return -(-len(self.rows) // self.batch_size)

    def _process(self, model: torch.nn.Module) -> Generator[int, None, Tally]:
        """Run every batch of this process, then merge what all processes kept.

        All processes run the same number of batches, since models may exchange numbers in a forward pass. A process
        that has none left repeats one and drops the result.
        """
        set_mode(model, training=False)
        tally, processes = Tally(), self.accelerator.num_processes
        mine = range(self.accelerator.process_index, -(-self.batches // processes) * processes, processes)
        batches = evaluation_batches(len(self.rows), self.batch_size, self.recipe.lengths(self.rows))
        requests = [Request(tuple(batches[number % self.batches].tolist())) for number in mine]
        count = self.recipe.loss_counts if self.has_targets else None
        maker = BatchMaker(self.recipe, self.rows, training=False, count=count)
        with closing(load_batches(maker, requests, self.workers)) as loaded:
            for number, batch in zip(mine, loaded, strict=True):
                self._process_batch(model, number, batch.to(self.accelerator.device), tally)
                yield min(number + 1, self.batches)
        return tally.merge_processes() if processes > 1 else tally

    @torch.no_grad()
    def _process_batch(self, model: torch.nn.Module, number: int, batch: MicroBatch, tally: Tally) -> None:
        outputs = self.recipe.forward(model, batch.inputs)
        if number >= self.batches:
            return
        if self.has_targets:
            tally.add_loss(number, batch, self.recipe.loss(outputs, batch.inputs, training=False))
        losses = self.recipe.row_losses(outputs, batch.inputs) if self.keeps_losses else None
        kept = {} if losses is None else {_LOSS: losses[0].double(), _ITEMS: losses[1].double()}
        tally.add_predictions(number, batch, {**self.recipe.predict(outputs, batch.inputs), **kept})


def finish(running: Generator[int, None, Result], report: Callable[[int], None] | None = None) -> Result:
    """Run an evaluation to its end, and return what it returns. `report` gets the number of batches done."""
    while True:
        try:
            done = next(running)
        except StopIteration as finished:
            result: Result = finished.value
            return result
        if report is not None:
            report(done)


def to_numpy(value: Any) -> Any:
    """Return a tensor as an array; anything else as it is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return value


def _measure_size(values: Any) -> int:
    if isinstance(values, np.ndarray):
        return values.nbytes
    if isinstance(values, (list, tuple)):
        return sum(map(_measure_size, values))
    return sum(map(_measure_size, values.values())) if isinstance(values, dict) else sys.getsizeof(values)
