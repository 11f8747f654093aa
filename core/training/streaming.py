"""Updates from rows that are read as they come: block by block, in an order that can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset, IterableDataset

from taskrecipe.core.data.load import blocks
from taskrecipe.core.errors import DataError
from taskrecipe.core.recipe import Recipe, Row
from taskrecipe.core.training.batches import Preparation, requests_of
from taskrecipe.core.training.randomness import Purpose, generator
from taskrecipe.core.training.update import Update, total_weights

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
        """Let go of the blocks before this one."""
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
    """The updates of a run over a stream. Position is saved with the run, so that nothing is read twice."""

    recipe: Recipe
    stream: IterableDataset
    accelerator: Accelerator
    model: torch.nn.Module
    total: int
    position: Position = field(default_factory=Position)

    def state(self) -> dict[str, Any]:
        """Where the next update begins."""
        return asdict(self.position)

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved position."""
        self.position = Position(**state)

    def __call__(self, start: int) -> Iterator[Update]:
        """Prepare the updates from number `start`, which is where the position is, up to the last."""
        if start != self.position.update:
            raise ValueError(f"the stream is at update {self.position.update}, not {start}")
        spec, accelerator = self.recipe.spec, self.accelerator
        accumulate = spec.train.accumulate
        mine = range(accelerator.process_index * accumulate, (accelerator.process_index + 1) * accumulate)
        store = _Blocks()
        preparation = Preparation(self.recipe, store, training=True)
        places = self._places(store)
        for number in range(start, self.total):
            taken = list(islice(places, spec.train.batch_size))
            epoch, rows = taken[0].epoch, np.array([place.number for place in taken])
            requests = requests_of(rows, epoch, accumulate * accelerator.num_processes, mine)
            batches = [preparation[request] for request in requests]
            totals = total_weights(batches)
            last = taken[-1]
            self.position = Position(number + 1, last.epoch, last.block, last.taken)
            yield Update(number, epoch, rows, batches, totals, accelerator, self.model)

    def _places(self, store: _Blocks) -> Iterator[_Place]:
        """Every row's place, in the order of training, from the position on and over all epochs."""
        first = self.position
        for epoch in count(first.epoch):
            begin, seen = (first.block if epoch == first.epoch else 0), 0
            for block, rows in enumerate(blocks(self.stream, BLOCK_ROWS, begin), begin):
                store.held[block] = self.recipe.preprocess(rows, "train")
                size = len(store.held[block])
                seen += size
                skip = first.offset if (epoch, block) == (first.epoch, first.block) else 0
                yield from self._in_order(epoch, block, size, skip)
                store.forget_before(self.position.block)
            if begin == 0 and not seen:
                raise DataError("the stream has no rows", split="train")

    def _in_order(self, epoch: int, block: int, size: int, skip: int) -> Iterator[_Place]:
        shuffled = self.recipe.spec.train.order == "shuffled"
        random = generator(Purpose.ORDER, self.recipe.spec.seed, epoch, block)
        order = random.permutation(size) if shuffled else np.arange(size)
        for taken, row in enumerate(order[skip:].tolist(), skip + 1):
            yield _Place(epoch, block, row, taken)
