"""One update: its micro-batches, and the exact share each of their losses has in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.core.errors import NonFiniteError
from taskrecipe.core.recipe import Recipe
from taskrecipe.core.training.batches import MicroBatch, Preparation, RowStore, load, training_requests
from taskrecipe.core.training.order import Order, Rows
from taskrecipe.core.training.peers import summed


@dataclass
class Update:
    """The micro-batches of this process, with what every loss term is a mean over in the whole update.

    A term's mean over the update is the sum of the micro-batches' means, each times its share of the
    items. That is known before the first backward, so gradients come out as of one large batch.
    """

    number: int
    epoch: int
    rows: Rows
    batches: list[MicroBatch]
    totals: dict[str, float]
    accelerator: Accelerator
    model: torch.nn.Module
    terms: dict[str, torch.Tensor] = field(default_factory=dict)
    """The mean of each term so far, as far as this process has a part in it."""

    def __iter__(self) -> Iterator[MicroBatch]:
        """Every micro-batch; processes exchange gradients at the last one only."""
        *early, last = self.batches
        for batch in early:
            with self.accelerator.no_sync(self.model):
                yield batch.to(self.accelerator.device)
        yield last.to(self.accelerator.device)

    def backward(self, terms: dict[str, torch.Tensor], batch: MicroBatch) -> None:
        """Add the gradients of a micro-batch's loss terms."""
        shares = self.shares(batch)
        counted = {name: term for name, term in terms.items() if shares[name]}
        for name, term in counted.items():
            part = term.detach() * shares[name]
            self.terms[name] = self.terms[name] + part if name in self.terms else part
        # Gradients are averaged over processes where they should be added.
        processes = self.accelerator.num_processes
        parts = [term * (shares[name] * processes) for name, term in counted.items()]
        if not parts:
            # Nothing to predict here, where a mean is NaN; but other processes wait for this one's gradients.
            parts = [term * 0.0 for term in terms.values()]
        self.accelerator.backward(reduce(torch.add, parts))

    def shares(self, batch: MicroBatch) -> dict[str, float]:
        """The share of `batch` in the items of each term."""
        return {name: weight / self.totals[name] if weight else 0.0 for name, weight in batch.weights.items()}

    def loss(self) -> torch.Tensor:
        """The loss of the whole update; all processes ask for it together."""
        none = torch.zeros((), device=self.accelerator.device)
        own: torch.Tensor = reduce(torch.add, self.terms.values()) if self.terms else none
        if self.accelerator.num_processes == 1:
            return own
        whole: torch.Tensor = self.accelerator.reduce(own.float(), "sum")  # some may have no term, so no dtype of one
        return whole

    def require_items(self) -> None:
        """Refuse an update in which there is nothing to predict: its loss would be 0 / 0."""
        if not any(self.totals.values()):
            raise NonFiniteError(
                f"update {self.number + 1} has nothing to predict: no row of it has a label left "
                f"(rows {listed(self.rows)})"
            )


@dataclass
class Updates:
    """The updates of a run, from any number on: calling it again with the same number gives the same ones."""

    recipe: Recipe
    rows: RowStore
    order: Order
    accelerator: Accelerator
    model: torch.nn.Module
    total: int

    def __call__(self, start: int) -> Iterator[Update]:
        """Prepare the updates from number `start` up to the last, each with its totals over all processes."""
        spec = self.recipe.spec
        accumulate, process = spec.train.accumulate, self.accelerator.process_index
        parts = accumulate * self.accelerator.num_processes
        mine = range(process * accumulate, (process + 1) * accumulate)
        requests = training_requests(self.order, range(start, self.total), parts, mine)
        batches = load(Preparation(self.recipe, self.rows, training=True), requests, spec.data.workers)
        for number in range(start, self.total):
            taken = [next(batches) for _ in range(accumulate)]
            epoch = number // self.order.updates_per_epoch
            rows = self.order.rows(number)
            totals = total_weights(taken)
            yield Update(number, epoch, rows, taken, totals, self.accelerator, self.model)

    def state(self) -> dict[str, Any]:
        """Nothing: the update number is all the position there is."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""


def total_weights(batches: list[MicroBatch]) -> dict[str, float]:
    """How many items each loss term has in a whole update, over all its micro-batches and processes."""
    terms = list(batches[0].weights)
    return dict(zip(terms, summed([sum(batch.weights[term] for batch in batches) for term in terms]), strict=True))


def listed(rows: Rows) -> str:
    """Row numbers for a message, the first of them if they are many."""
    shown = ", ".join(str(row) for row in rows[:32])
    return shown if len(rows) <= 32 else f"{shown} … {len(rows) - 32} more"
