"""A sharded model of which one process has too little memory, at each place where that may be noticed.

`python -m tests.support.shard_memory_process SHARD`
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import distributed

from taskrecipe.sharding.module import shard_module
from taskrecipe.training.exchange import gather_values
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.stall_process import Wide
from tests.support.toyruns import toy_spec

WIDTH, BLOCKS = 12, 3
PLACES = ["before", "0", "1", "2", "after", "back 2", "back 1", "back 0"]
"""Before the model, in a block, in the loss, and in the backward pass of a block, which the last is computed first."""


class Fault:
    """Runs out of memory at one place above two rows, in the last process only.

    With four rows it does so in every second micro-batch, after the gradients of one have been added up.
    """

    def __init__(self, place: str | None) -> None:
        self.place, self.calls, self.raised = place, 0, 0

    def check(self, place: str, rows: int) -> None:
        if place != self.place or distributed.get_rank() == 0 or rows <= 2:
            return
        self.calls += 1
        if rows > 4 or self.calls % 2:
            self.raised += 1
            raise torch.OutOfMemoryError(f"no memory for {rows} rows")


class FailingBackward(torch.autograd.Function):
    """Passes its input on, and runs out of memory in the backward pass."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, fault: Fault, place: str) -> torch.Tensor:
        context.about = fault, place
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        fault, place = context.about
        fault.check(place, len(gradient))
        return gradient, None, None


class Block(torch.nn.Module):
    """A layer with dropout."""

    def __init__(self, number: int, fault: Fault) -> None:
        super().__init__()
        self.number, self.fault = number, fault
        self.layer, self.dropout = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = FailingBackward.apply(self.layer(inputs), self.fault, f"back {self.number}")
        if self.training:
            self.fault.check(str(self.number), len(inputs))
        return self.dropout(hidden)


class Stack(torch.nn.Module):
    """Several blocks, each gathered by itself."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(number, fault) for number in range(BLOCKS))
        self.last = torch.nn.Linear(WIDTH, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.last(inputs)


class Short(Wide):
    """Trains it."""

    fault: Fault

    def forward(self, model: Any, batch: Any) -> Any:
        if model.training:
            self.fault.check("before", len(batch["inputs"]))
        return super().forward(model, batch)

    def loss(self, outputs: Any, batch: Any, training: bool) -> dict[str, Any]:
        if training:
            self.fault.check("after", len(batch["inputs"]))
        return super().loss(outputs, batch, training)


def train(accumulate: Any, shard: str, place: str | None = None) -> dict[str, Any]:
    """Return the weights after some updates, and how updates were cut in each process."""
    spec = toy_spec(
        train={"accumulate": accumulate, "batch_size": 16, "updates": 3, "clip_norm": 0.1},
        evaluate={"best": "loss", "every": "end"},
        launch={"device": "cpu", "shard": shard},
    )
    accelerator, fault = make_accelerator(spec), Fault(place)
    torch.manual_seed(0)
    module = Stack(fault)
    shard_module(module, spec, accelerator)
    recipe = Short(spec)
    recipe.fault = fault
    inputs = np.random.default_rng(0).random((40, WIDTH), dtype=np.float32)
    rows = Dataset.from_dict({"inputs": inputs}).with_format("numpy")
    loop = make_loop(recipe, module, {"train": rows, "validation": rows}, accelerator)
    list(loop.run())
    whole = [getattr(value, "full_tensor", lambda value=value: value)() for value in module.parameters()]
    return {
        "weights": torch.cat([value.detach().flatten() for value in whole]).tolist(),
        "parts": gather_values(loop.state.updates.cut.parts),
        "raised": gather_values(fault.raised),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    shard = sys.argv[1]
    found = {name: train(cut, shard) for name, cut in (("fixed", 4), ("whole", 1), ("roomy", "auto"))}
    found |= {place: train("auto", shard, place) for place in PLACES}
    if distributed.get_rank() == 0:
        print(json.dumps(found))
    distributed.destroy_process_group()
