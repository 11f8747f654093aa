"""What two processes exchange in an update, and what becomes of weights that one of them doesn't use."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch
from torch import distributed

from taskrecipe.errors import UsageError
from taskrecipe.training.exchange import gather_values
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.toyruns import toy_spec
from tests.support.toys import Tag, tag_rows

CALLS = ("all_reduce", "broadcast", "all_gather", "barrier")


class Unused(torch.nn.Module):
    """A model with a layer that some micro-batches don't use."""

    def __init__(self, inner: torch.nn.Module, is_used: Any) -> None:
        super().__init__()
        self.inner, self.is_used, self.passes = inner, is_used, 0
        self.rare = torch.nn.Linear(1, 1)

    def forward(self, *args: Any, **options: Any) -> Any:
        outputs = self.inner(*args, **options)
        if self.is_used(self.passes):
            outputs.loss = outputs.loss + 0.0 * self.rare(torch.ones(1)).sum()
            outputs.logits = outputs.logits + 0.0 * self.rare(torch.ones(1)).sum()
        self.passes += self.training
        return outputs


def make(is_used: Any = None, **launch: Any) -> Any:
    spec = toy_spec(
        train={"updates": 10, "batch_size": 8, "accumulate": 2, "learning_rate": 1e-3},
        evaluate={"best": "loss", "every": "end"},
        log={"every": 1},
        launch=launch,
    )
    torch.manual_seed(0)
    recipe, model = Tag(spec), Tag(spec).load_model(None)
    model = Unused(model, is_used) if is_used else model
    rows = {"train": tag_rows(80), "validation": tag_rows(4)}
    loop = make_loop(recipe, model, rows, make_accelerator(spec))
    loop.evaluations = []
    return loop


def count_exchanges() -> dict[str, int]:
    """How often processes exchange something in the updates 3 to 10 of a loop, and whether they wait for it."""
    counts: Counter[str] = Counter()
    real = {name: getattr(distributed, name) for name in CALLS}

    def counted(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            kind = "small" if name != "all_reduce" or args[0].numel() < 16 else "gradients"
            counts[f"{kind}, {'in the background' if options.get('async_op') else 'waiting'}"] += 1
            return real[name](*args, **options)

        return call

    loop = make()
    running = loop.run()
    while loop.progress.step < 2:
        next(running)
    for name in CALLS:
        setattr(distributed, name, counted(name))
    while loop.progress.step < 10:
        next(running)
    for name in CALLS:
        setattr(distributed, name, real[name])
    running.close()
    return dict(counts)


def try_unused(is_used: Any, **launch: Any) -> list[Any]:
    """How far a loop comes, and the error that ends it, in every process."""
    loop, message = make(is_used, **launch), ""
    try:
        for _ in loop.run():
            pass
    except UsageError as error:
        message = str(error)
    weights = float(sum(weight.detach().double().sum() for weight in loop.state.module.inner.parameters()))
    return gather_values([loop.progress.step, message, weights])


def main() -> None:
    make_accelerator(toy_spec())
    found = {
        "exchanges": count_exchanges(),
        "never": try_unused(lambda number: False),
        "not in the last": try_unused(lambda number: number % 2 == 0),
        "allowed": try_unused(lambda number: distributed.get_rank() == number % 2, unused_weights=True),
    }
    if distributed.get_rank() == 0:
        print(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
