"""One update: its micro-batches, and the exact share that each of their losses has in it.

A loss term is a mean over items: tokens, boxes, rows. The mean over a whole update is the sum of the micro-batches'
means, each times its share of the items. How many items a micro-batch has is known from the batch alone, so the
total over all micro-batches and processes is known before the first backward pass. Each loss is multiplied by its
share, and the summed gradients are those of one large batch, also where the last update of an epoch is short.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.errors import NonFiniteError
from taskrecipe.optional import ComputesUpdate
from taskrecipe.training.batches import (
    BatchMaker,
    Counts,
    MicroBatch,
    RowStore,
    load_batches,
    training_requests,
    update_requests,
)
from taskrecipe.training.exchange import sum_over_processes
from taskrecipe.training.micro_batches import Cut, compute_within_memory
from taskrecipe.training.objective import Objective
from taskrecipe.training.order import Order, Rows
from taskrecipe.training.randomness import Purpose, seed_everything
from taskrecipe.training.sharding import delay_exchange, run_backward
from taskrecipe.training.unused_weights import ExchangeWatch
from taskrecipe.training.update_exchange import UpdateExchange


@dataclass
class Update:
    """The micro-batches of this process, and the counts of the whole update over all processes."""

    number: int
    epoch: int
    rows: Rows
    batches: list[MicroBatch]
    counts: Counts
    accelerator: Accelerator
    model: torch.nn.Module
    objective: Objective
    cut: Cut
    make_batches: Callable[[int], list[MicroBatch]]
    """Makes the micro-batches of this process again, given how many they are to be."""
    watch: ExchangeWatch | None = None
    """What notices that gradients were not exchanged, where several processes average them."""
    exchange: UpdateExchange = field(default_factory=UpdateExchange)
    is_last: bool = False
    """Whether the micro-batch that is being computed is the last one."""
    terms: dict[str, torch.Tensor] = field(default_factory=dict)
    """This process's part of each term's mean so far."""

    def __iter__(self) -> Iterator[MicroBatch]:
        """Yield every micro-batch. Processes exchange gradients at the last one only."""
        *early, last = self.batches
        self.is_last = False
        for batch in early:
            with delay_exchange(self.accelerator, self.model):
                yield batch.to(self.accelerator.device)
        self.is_last = True
        yield last.to(self.accelerator.device)

    def compute_gradients(self) -> None:
        """Add up the gradients of the whole update. If memory is not enough, cut it finer where the spec allows it."""
        if self.cut.is_fixed:
            self._add_gradients()
        else:
            compute_within_memory(self.cut, self.model, self._start_again)
        if self.watch is not None:
            self.watch.require_all(self.number)
        self.exchange.begin(self.terms)
        self.exchange.finish()

    def seed(self) -> None:
        """Make what is random in this update a function of its number."""
        seed, process = self.objective.recipe.spec.seed, self.accelerator.process_index
        seed_everything(self.accelerator.device, Purpose.UPDATE, seed, self.number, process)

    def _start_again(self) -> None:
        if len(self.batches) != self.cut.parts:
            self.batches = self.make_batches(self.cut.parts)
        self.terms = {}
        self.seed()
        self._add_gradients()

    def _add_gradients(self) -> None:
        recipe = self.objective.recipe
        if isinstance(recipe, ComputesUpdate) and recipe.whole_update:
            recipe.backward(self.model, self)
            return
        weights = self.objective.term_weights(self.counts)
        for batch in self:
            with self.use_rows(batch):
                terms = self.objective.compute(self.model, batch.inputs).terms
            weighted = {name: _scale(term, weights.get(name, 1.0)) for name, term in terms.items()}
            self.backward(weighted, batch)

    def forward(self, batch: MicroBatch) -> Any:
        """Run the model on a micro-batch, for recipes that compute a whole update. Twice gives the same outputs."""
        with self.use_rows(batch):
            return self.objective.forward(self.model, batch.inputs)

    def use_rows(self, batch: MicroBatch) -> AbstractContextManager[None]:
        """Let dropout follow the rows of a micro-batch while it is computed."""
        dropout = self.objective.dropout
        return dropout.use_rows(self.number, batch.rows) if dropout else nullcontext()

    def backward(self, terms: dict[str, torch.Tensor], batch: MicroBatch) -> None:
        """Add the gradients of a micro-batch's loss terms."""
        shares = self.shares(batch)
        counted = {name: term for name, term in terms.items() if shares[name]}
        for name, term in counted.items():
            part = _scale(term.detach(), shares[name])
            self.terms[name] = self.terms[name] + part if name in self.terms else part
        # Processes average their gradients, and here they must be summed.
        processes = self.accelerator.num_processes
        parts = [_scale(term, shares[name] * processes) for name, term in counted.items()]
        if not parts:
            # There is nothing to predict, so the mean is NaN; but the other processes wait for these gradients.
            parts = [term * 0.0 for term in terms.values()]
        if self.is_last and self.cut.is_fixed:
            self.exchange.begin(self.terms)
        self.add_gradients(reduce(torch.add, parts))

    def add_gradients(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss as it is, for recipes that compute a whole update."""
        run_backward(self.accelerator, self.model, loss)

    def shares(self, batch: MicroBatch) -> dict[str, float]:
        """Return the share of `batch` in the items of each term."""
        return {name: count / self.counts[name] if count else 0.0 for name, count in batch.counts.items()}

    def loss(self) -> torch.Tensor:
        """Return the loss of the whole update. All processes must call this together."""
        if self.exchange.terms is not None:
            return torch.tensor(sum(self.exchange.terms.values()), device=self.accelerator.device)
        none = torch.zeros((), device=self.accelerator.device)
        own: torch.Tensor = reduce(torch.add, self.terms.values()) if self.terms else none
        if self.accelerator.num_processes == 1:
            return own
        whole: torch.Tensor = self.accelerator.reduce(own.float(), "sum")  # a process without terms has no dtype of one
        return whole

    def whole_terms(self, names: Sequence[str]) -> torch.Tensor:
        """Return the mean of each loss term over the whole update. All processes must call this together."""
        if self.exchange.terms is not None:
            return torch.tensor([self.exchange.terms[name] for name in names], device=self.accelerator.device)
        none = torch.zeros((), device=self.accelerator.device)
        values = torch.stack([self.terms.get(name, none).float() for name in names])
        if self.accelerator.num_processes == 1:
            return values
        whole: torch.Tensor = self.accelerator.reduce(values, "sum")
        return whole

    def require_items(self) -> None:
        """Raise if there is nothing to predict in the whole update: its loss would be 0 / 0."""
        if not any(self.counts[name] for name in self.objective.term_names(self.counts)):
            raise NonFiniteError(
                f"update {self.number + 1} has nothing to predict: no row of it has a label left "
                f"(rows {list_rows(self.rows)})",
                self.number + 1,
            )


@dataclass
class Updates:
    """The updates of a run over stored rows, from any number on. The same number gives the same update."""

    objective: Objective
    rows: RowStore
    order: Order
    accelerator: Accelerator
    model: torch.nn.Module
    total: int
    cut: Cut
    watch: ExchangeWatch | None = None

    def __call__(self, start: int) -> Generator[Update, None, None]:
        """Yield the updates from number `start` to the last, each with its counts over all processes."""
        recipe = self.objective.recipe
        maker = BatchMaker(recipe, self.rows, training=True, count=self.objective.counts)
        while start < self.total:
            parts = self.cut.parts
            requests = training_requests(self.order, range(start, self.total), *share_parts(self.accelerator, parts))
            with closing(load_batches(maker, requests, recipe.spec.data.workers)) as batches:
                for update in self._walk_batches(start, batches, maker):
                    yield update
                    start = update.number + 1

    def _walk_batches(
        self, start: int, batches: Iterator[MicroBatch], maker: BatchMaker
    ) -> Generator[Update, None, None]:
        """Yield updates until the last, or until they are cut in another way than these batches."""
        parts, counts = self.cut.parts, None
        coming = list(islice(batches, parts))
        for number in range(start, self.total):
            update = self._make_update(number, coming, counts or total_counts(coming), maker)
            coming = list(islice(batches, parts)) if self._looks_ahead else []
            own = own_counts(coming) if coming else {}
            update.exchange.coming = list(own.values())
            yield update
            if self.cut.parts != parts:
                return
            counts = dict(zip(own, update.exchange.next_counts, strict=True)) if update.exchange.next_counts else None
            coming = coming or list(islice(batches, parts))

    @property
    def _looks_ahead(self) -> bool:
        """Whether the next batches are made before an update is computed, so that its exchange carries their counts."""
        return self.accelerator.num_processes > 1 and self.cut.is_fixed

    def _make_update(self, number: int, batches: list[MicroBatch], counts: Counts, maker: BatchMaker) -> Update:
        epoch, rows = number // self.order.updates_per_epoch, self.order.rows(number)

        def make_batches(parts: int) -> list[MicroBatch]:
            return [maker[request] for request in update_requests(rows, epoch, *share_parts(self.accelerator, parts))]

        where = (self.accelerator, self.model, self.objective)
        exchange = make_exchange(self.objective, self.accelerator, counts)
        return Update(number, epoch, rows, batches, counts, *where, self.cut, make_batches, self.watch, exchange)

    def state(self) -> dict[str, Any]:
        """Return how updates are cut, if that was found out. The update number is the whole position."""
        return self.cut.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.cut.restore(state)


def _scale(term: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply a loss term, unless that changes nothing: a small model notices every operation."""
    return term if factor == 1.0 else term * factor


def share_parts(accelerator: Accelerator, parts: int) -> tuple[int, range]:
    """Return how many parts an update has if each process has `parts`, and which are this process's."""
    process = accelerator.process_index
    return parts * accelerator.num_processes, range(process * parts, (process + 1) * parts)


def make_exchange(objective: Objective, accelerator: Accelerator, counts: Counts) -> UpdateExchange:
    """Return the small exchange of an update with these counts."""
    # On another device, reading the terms would wait for it.
    return UpdateExchange(objective.term_names(counts) if accelerator.device.type == "cpu" else [])


def total_counts(batches: list[MicroBatch]) -> Counts:
    """Return how many items each loss term has in the whole update, over all micro-batches and processes."""
    own = own_counts(batches)
    return dict(zip(own, sum_over_processes(list(own.values())), strict=True))


def own_counts(batches: list[MicroBatch]) -> Counts:
    """Return how many items each loss term has in these micro-batches."""
    return {term: sum(batch.counts[term] for batch in batches) for term in batches[0].counts}


def list_rows(rows: Rows) -> str:
    """Return row numbers for a message; only the first if there are many."""
    shown = ", ".join(str(row) for row in rows[:32])
    return shown if len(rows) <= 32 else f"{shown} … {len(rows) - 32} more"
