"""From row numbers to micro-batches: fetched, made into examples, collated and counted, here or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from accelerate.utils import send_to_device
from torch.utils.data import Dataset

from taskrecipe.recipe import Batch, Recipe, Row
from taskrecipe.training.data_workers import load_in_workers
from taskrecipe.training.order import Order, Rows, split_evenly
from taskrecipe.training.randomness import Purpose, make_generator

Counts = dict[str, float]


class RowStore(Protocol):
    """Anything that rows can be taken from by number; a `datasets.Dataset` is one."""

    def __len__(self) -> int: ...
    def __getitems__(self, keys: list[int]) -> list[Row]: ...


@dataclass(frozen=True)
class Request:
    """The rows of one micro-batch. A filler is computed where a process has no rows left, and counts nothing."""

    rows: tuple[int, ...]
    epoch: int = 0
    filler: bool = False


@dataclass
class MicroBatch:
    """What one forward pass takes, and how many items each of its loss terms is a mean over."""

    rows: tuple[int, ...]
    inputs: Batch
    counts: Counts

    @property
    def tokens(self) -> int:
        """How many tokens it holds without padding; 0 for rows without tokens. Read before it is on a device."""
        ids, mask = self.inputs.get("input_ids"), self.inputs.get("attention_mask")
        if not isinstance(ids, torch.Tensor) or not self.rows:
            return 0
        if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
            return int(mask.sum())
        return ids.numel()

    def pin_memory(self) -> MicroBatch:
        """Copy the tensors to pinned memory, so that they move to a device in the background. The loader calls this."""
        pinned = {k: v.pin_memory() if isinstance(v, torch.Tensor) else v for k, v in self.inputs.items()}
        return replace(self, inputs=pinned)

    def to(self, device: torch.device) -> MicroBatch:
        """Return the batch with its tensors on the device of the model."""
        if device.type == "cpu":
            return self
        return replace(self, inputs=send_to_device(self.inputs, device, non_blocking=True))


class BatchMaker(Dataset[MicroBatch]):
    """Makes micro-batches of requests. The same request gives the same batch in any process.

    `count` counts the items of each loss term; without it, batches have no counts.
    """

    def __init__(
        self, recipe: Recipe, rows: RowStore, *, training: bool, count: Callable[[Batch], Counts] | None = None
    ) -> None:
        self.recipe, self.rows, self.training, self.count = recipe, rows, training, count
        self.purpose = Purpose.EXAMPLE if training else Purpose.EVALUATION
        # Most recipes need no random examples; then no generator is made for each row.
        self.makes_examples = type(recipe).example is not Recipe.example

    def examples(self, request: Request) -> list[Row]:
        """Return the rows of a request as the model sees them, before they are collated."""
        rows = self.rows.__getitems__(list(request.rows))
        if not self.makes_examples:
            return rows
        seed = self.recipe.spec.seed
        return [
            self.recipe.example(row, make_generator(self.purpose, seed, request.epoch, number), self.training)
            for row, number in zip(rows, request.rows, strict=True)
        ]

    def __getitem__(self, request: Request) -> MicroBatch:
        inputs = self.recipe.collate(self.examples(request))
        counts = self.count(inputs) if self.count else {}
        return MicroBatch(request.rows, inputs, dict.fromkeys(counts, 0.0) if request.filler else counts)


def load_batches(maker: BatchMaker, requests: Iterable[Request], workers: int) -> Generator[MicroBatch, None, None]:
    """Make the requested batches in order; with workers, in the background before they are needed."""
    if workers == 0:
        return (maker[request] for request in requests)
    return load_in_workers(maker, requests, workers)


def training_requests(order: Order, updates: range, parts: int, mine: range) -> Iterator[Request]:
    """Yield the micro-batches of this process, update after update."""
    for update in updates:
        yield from update_requests(order.rows(update), update // order.updates_per_epoch, parts, mine)


def update_requests(rows: Rows, epoch: int, parts: int, mine: range) -> Iterator[Request]:
    """Yield the micro-batches of this process in one update: `mine` of the `parts` it is cut into."""
    pieces = split_evenly(rows, parts)
    for part in mine:
        piece = pieces[part] if len(pieces[part]) else rows[:1]
        yield Request(tuple(piece.tolist()), epoch, filler=not len(pieces[part]))
