"""Measuring a split: every row once, at any batch size and number of processes, in flat memory."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset

from taskrecipe.core.recipe import Recipe, Total, reported_name
from taskrecipe.core.training.batches import MicroBatch, Preparation, Request, load
from taskrecipe.core.training.order import evaluation_batches


@dataclass
class Tally:
    """What an evaluation keeps: numbers by batch, never outputs."""

    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    losses: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Each loss term's sum and the items in it."""
    totals: dict[str, Any] = field(default_factory=dict)

    def add(self, number: int, batch: MicroBatch, predictions: dict[str, Any]) -> None:
        """Keep what a batch gave."""
        self.rows[number] = batch.rows
        self.values[number] = {k: _kept(v) for k, v in predictions.items() if not isinstance(v, Total)}
        for key, value in predictions.items():
            if isinstance(value, Total):
                amount = _kept(value.value)
                self.totals[key] = self.totals[key] + amount if key in self.totals else amount

    def add_loss(self, number: int, batch: MicroBatch, terms: dict[str, torch.Tensor]) -> None:
        """Keep the loss of a batch, as a sum, so that means of unequal batches come out right."""
        self.losses[number] = {
            name: (float(term) * batch.weights[name], batch.weights[name])
            for name, term in terms.items()
            if batch.weights[name]
        }

    def merge(self, others: list[Tally]) -> None:
        """Take in what other processes kept."""
        for other in others:
            self.rows |= other.rows
            self.values |= other.values
            self.losses |= other.losses
            for key, amount in other.totals.items():
                self.totals[key] = self.totals[key] + amount if key in self.totals else amount

    def predictions(self, size: int) -> dict[str, Any]:
        """Each key's values in the order of the rows, and its total where it has one."""
        rows = np.concatenate([np.asarray(self.rows[number]) for number in sorted(self.rows)])
        if len(rows) != size or not np.array_equal(np.sort(rows), np.arange(size)):
            raise RuntimeError(f"an evaluation must see each of {size} rows once, but saw {len(rows)}")
        place = np.argsort(rows)
        columns = {key: self._column(key, place) for key in next(iter(self.values.values()))}
        return {**columns, **self.totals}

    def loss(self) -> float:
        """The sum over terms of each term's mean over all items: the same however rows were batched."""
        terms: dict[str, list[tuple[float, float]]] = {}
        for number in sorted(self.losses):
            for name, pair in self.losses[number].items():
                terms.setdefault(name, []).append(pair)
        means = [math.fsum(s for s, _ in pairs) / math.fsum(n for _, n in pairs) for pairs in terms.values()]
        return math.fsum(means) if means else math.nan

    def _column(self, key: str, place: np.ndarray[Any, Any]) -> Any:
        parts = [self.values[number][key] for number in sorted(self.values)]
        if all(isinstance(part, np.ndarray) for part in parts) and len({p.shape[1:] for p in parts}) == 1:
            return np.concatenate(parts)[place]
        flat = [value for part in parts for value in part]
        return [flat[i] for i in place]


@dataclass(frozen=True)
class Evaluation:
    """One split, ready to be measured again and again."""

    recipe: Recipe
    split: str
    rows: Dataset
    batch_size: int
    workers: int
    accelerator: Accelerator

    def run(self, model: torch.nn.Module) -> Generator[int, None, dict[str, float]]:
        """Measure, yielding after each batch how many are done, and return the numbers.

        All processes go through equally many batches, since models may exchange numbers in a forward pass:
        who has none left repeats one, and forgets it.
        """
        model.eval()
        tally = Tally()
        processes = self.accelerator.num_processes
        mine = range(self.accelerator.process_index, -(-self.batches // processes) * processes, processes)
        for number, batch in zip(mine, self._load(mine), strict=True):
            self._measure(model, number, batch.to(self.accelerator.device), tally)
            yield min(number + 1, self.batches)
        return self._score(tally)

    @property
    def batches(self) -> int:
        """How many batches the split has."""
        return -(-len(self.rows) // self.batch_size)

    def _load(self, mine: range) -> Iterator[MicroBatch]:
        batches = evaluation_batches(len(self.rows), self.batch_size, self.recipe.lengths(self.rows))
        requests = [Request(tuple(batches[number % self.batches].tolist())) for number in mine]
        return load(Preparation(self.recipe, self.rows, training=False), requests, self.workers)

    @torch.no_grad()
    def _measure(self, model: torch.nn.Module, number: int, batch: MicroBatch, tally: Tally) -> None:
        loss = self.recipe.loss(model, batch.inputs)
        if number >= self.batches:
            return
        tally.add_loss(number, batch, loss.terms)
        tally.add(number, batch, self.recipe.predictions(model, batch.inputs, loss.outputs))

    def _score(self, tally: Tally) -> dict[str, float]:
        if self.accelerator.num_processes > 1:
            everyone = gather_object([tally])
            tally = everyone[0]
            tally.merge(everyone[1:])
        numbers = self.recipe.score(tally.predictions(len(self.rows)), self.rows)
        numbers = {**numbers, "loss": tally.loss()}
        return {reported_name(self.split, name): float(value) for name, value in numbers.items()}


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return value
