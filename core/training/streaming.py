"""Updates over a stream: rows are read block by block, in an order that can be resumed anywhere."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset, IterableDataset

from taskrecipe.data.streams import read_blocks
from taskrecipe.errors import DataError
from taskrecipe.recipe import Recipe, Row
from taskrecipe.spec.spec import Spec
from taskrecipe.training.batches import BatchMaker, MicroBatch, RowStore, update_requests
from taskrecipe.training.micro_batches import Cut
from taskrecipe.training.objective import Objective
from taskrecipe.training.order import Rows
from taskrecipe.training.randomness import Purpose, make_generator
from taskrecipe.training.unused_weights import ExchangeWatch
from taskrecipe.training.update import Update, make_exchange, share_parts, total_counts

BLOCK_ROWS = 1024
"""Rows that are read, preprocessed and shuffled together."""

MAX_BLOCK = 2**24
"""More preprocessed rows than a block can have: a row's number is its block's times this, plus its own."""


@dataclass(frozen=True)
class Position:
    """Where in the stream an update begins."""

    update: int = 0
    epoch: int = 0
    block: int = 0
    offset: int = 0


@dataclass
class _Blocks:
    """The preprocessed blocks that updates are being made of, by number."""

    held: dict[int, Dataset] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.held.values())

    def __getitems__(self, keys: list[int]) -> list[Row]:
        fetched: dict[int, Row] = {}
        for block in {key // MAX_BLOCK for key in keys}:
            mine = [key for key in keys if key // MAX_BLOCK == block]
            fetched |= zip(mine, self.held[block].__getitems__([key % MAX_BLOCK for key in mine]), strict=True)
        return [fetched[key] for key in keys]

    def forget_before(self, block: int) -> None:
        """Drop the blocks before this one."""
        self.held = {number: rows for number, rows in self.held.items() if number >= block}


class _Place(NamedTuple):
    """A row's place in the stream, and how many rows of its block have then been taken."""

    epoch: int
    block: int
    row: int
    taken: int

    @property
    def number(self) -> int:
        """The row's number in the whole stream."""
        return self.block * MAX_BLOCK + self.row


@dataclass
class StreamedUpdates:
    """The updates of a run over a stream. Checkpoints keep the position, so that no row is read twice."""

    objective: Objective
    stream: IterableDataset
    accelerator: Accelerator
    model: torch.nn.Module
    total: int
    cut: Cut
    watch: ExchangeWatch | None = None
    position: Position = field(default_factory=Position)

    def state(self) -> dict[str, Any]:
        """Return where the next update begins, and how updates are cut, if that was found out."""
        return {**asdict(self.position), "cut": self.cut.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved position."""
        self.position = Position(**{key: value for key, value in state.items() if key != "cut"})
        self.cut.restore(state["cut"])

    def __call__(self, start: int) -> Generator[Update, None, None]:
        """Yield the updates from number `start`, which must be the position, to the last."""
        if start != self.position.update:
            raise ValueError(f"the stream is at update {self.position.update}, not {start}")
        taken = walk_stream(self.objective.recipe, self.stream, self.position)
        for number, streamed in zip(range(start, self.total), taken, strict=False):
            self.position = streamed.after
            yield self._make_update(number, streamed)

    def _make_update(self, number: int, streamed: StreamedRows) -> Update:
        rows, epoch, store, _ = streamed
        maker = BatchMaker(self.objective.recipe, store, training=True, count=self.objective.counts)

        def make_batches(parts: int) -> list[MicroBatch]:
            return [maker[request] for request in update_requests(rows, epoch, *share_parts(self.accelerator, parts))]

        batches = make_batches(self.cut.parts)
        counts, where = total_counts(batches), (self.accelerator, self.model, self.objective)
        exchange = make_exchange(self.objective, self.accelerator, counts)
        return Update(number, epoch, rows, batches, counts, *where, self.cut, make_batches, self.watch, exchange)


class StreamedRows(NamedTuple):
    """The rows of one update, from where they can be taken, and where the next update begins."""

    rows: Rows
    epoch: int
    store: RowStore
    after: Position


def walk_stream(recipe: Recipe, stream: IterableDataset, start: Position) -> Iterator[StreamedRows]:
    """Yield the rows of every update from a position on, over all epochs."""
    store = _Blocks()
    places = _walk_places(recipe, stream, start, store)
    for number in count(start.update):
        taken = list(islice(places, recipe.spec.train.batch_size))
        last = taken[-1]
        after = Position(number + 1, last.epoch, last.block, last.taken)
        yield StreamedRows(np.array([place.number for place in taken]), taken[0].epoch, store, after)
        store.forget_before(last.block)


def _walk_places(recipe: Recipe, stream: IterableDataset, first: Position, store: _Blocks) -> Iterator[_Place]:
    """Yield every row's place, in the order of training, from a position on and over all epochs."""
    for epoch in count(first.epoch):
        begin, seen = (first.block if epoch == first.epoch else 0), 0
        for block, rows in enumerate(read_blocks(stream, BLOCK_ROWS, begin), begin):
            store.held[block] = recipe.preprocess(rows, "train")
            size = len(store.held[block])
            seen += size
            skip = first.offset if (epoch, block) == (first.epoch, first.block) else 0
            yield from _in_order(recipe.spec, epoch, block, size, skip)
        if begin == 0 and not seen:
            raise DataError("the stream has no rows", split="train")


def _in_order(spec: Spec, epoch: int, block: int, size: int, skip: int) -> Iterator[_Place]:
    shuffled = spec.train.order == "shuffled"
    random = make_generator(Purpose.ORDER, spec.seed, epoch, block)
    order = random.permutation(size) if shuffled else np.arange(size)
    for taken, row in enumerate(order[skip:].tolist(), skip + 1):
        yield _Place(epoch, block, row, taken)
