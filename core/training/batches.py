"""From row numbers to micro-batches: fetched, varied, collated and weighed, in this process or in workers."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children
from typing import Any, Protocol

import torch
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader, Dataset

from taskrecipe.core.errors import RunStopped
from taskrecipe.core.recipe import Batch, Recipe, Row
from taskrecipe.core.signals import leave_to_parent
from taskrecipe.core.training.order import Order, Rows, shares
from taskrecipe.core.training.randomness import Purpose, generator


class RowStore(Protocol):
    """Anything that rows can be taken from by number; a `datasets.Dataset` is one."""

    def __len__(self) -> int: ...
    def __getitems__(self, keys: list[int]) -> list[Row]: ...


@dataclass(frozen=True)
class Request:
    """The rows of one micro-batch. A filler stands in where a process has none, and weighs nothing."""

    rows: tuple[int, ...]
    epoch: int = 0
    filler: bool = False


@dataclass
class MicroBatch:
    """What one forward pass takes, and how many items each of its loss terms is a mean over."""

    rows: tuple[int, ...]
    inputs: Batch
    weights: dict[str, float]

    def pin_memory(self) -> MicroBatch:
        """Put the tensors where copies to a device run beside its work; the loader calls this."""
        pinned = {k: v.pin_memory() if isinstance(v, torch.Tensor) else v for k, v in self.inputs.items()}
        return replace(self, inputs=pinned)

    def to(self, device: torch.device) -> MicroBatch:
        """The batch with its tensors on the device the model is on."""
        if device.type == "cpu":
            return self
        return replace(self, inputs=send_to_device(self.inputs, device, non_blocking=True))


class Preparation(Dataset[MicroBatch]):
    """Makes micro-batches of requests; the same request gives the same batch in any process."""

    def __init__(self, recipe: Recipe, rows: RowStore, training: bool) -> None:
        self.recipe, self.rows, self.training = recipe, rows, training
        self.purpose = Purpose.EXAMPLE if training else Purpose.EVALUATION
        self.varies = getattr(recipe.example, "__func__", None) is not Recipe.example

    def __getitem__(self, request: Request) -> MicroBatch:
        rows = self.rows.__getitems__(list(request.rows))
        if self.varies:
            seed = self.recipe.spec.seed
            rows = [
                self.recipe.example(row, generator(self.purpose, seed, request.epoch, number), self.training)
                for row, number in zip(rows, request.rows, strict=True)
            ]
        inputs = self.recipe.collate(rows)
        weights = self.recipe.weights(inputs)
        if request.filler:
            weights = dict.fromkeys(weights, 0.0)
        return MicroBatch(request.rows, inputs, weights)


def load(preparation: Preparation, requests: Iterable[Request], workers: int) -> Iterator[MicroBatch]:
    """Prepare requests in their order, ahead of need where there are workers."""
    if workers == 0:
        return map(preparation.__getitem__, requests)
    loader = DataLoader(
        preparation,
        sampler=requests,
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=torch.accelerator.is_available(),
        generator=torch.Generator(),  # the loader seeds its workers: not from the generator dropout uses
        worker_init_fn=_start_worker,
    )
    return _ahead(iter(loader))


def _ahead(batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    """Receive each batch from its worker while the one before is trained on."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch


@contextmanager
def naming_dead_workers() -> Iterator[None]:
    """Make an error for its reader of what torch raises, wherever the program is, when a worker was killed."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise RunStopped(
            f"{str(error).strip().rstrip('.')}: if that was for want of memory, fewer [data].workers need less. "
            "What was saved stays; `recipe resume` goes on from there"
        ) from error


@atexit.register
def _end_workers() -> None:
    """Python ends what is left of them by a signal that they leave to this process, and would wait forever."""
    for worker in active_children():
        worker.kill()


def training_requests(order: Order, updates: range, parts: int, mine: range) -> Iterator[Request]:
    """The micro-batches of this process, update after update."""
    for update in updates:
        yield from requests_of(order.rows(update), update // order.updates_per_epoch, parts, mine)


def requests_of(rows: Rows, epoch: int, parts: int, mine: range) -> Iterator[Request]:
    """The micro-batches of this process in one update: `mine` of the `parts` it is cut into."""
    pieces = shares(rows, parts)
    for part in mine:
        piece = pieces[part] if len(pieces[part]) else rows[:1]
        yield Request(tuple(piece.tolist()), epoch, filler=not len(pieces[part]))


def _as_it_is(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    leave_to_parent()
