"""What the toy recipe gives in one process or in each of several: evaluations of every size, and gradients."""

from __future__ import annotations

import json
from typing import Any

import torch
from accelerate.utils import gather_object
from toyruns import toy_spec
from toys import Tag, tag_rows

from taskrecipe.core.errors import NonFiniteError
from taskrecipe.core.training.assembly import assemble, make_accelerator
from taskrecipe.core.training.evaluation import Evaluation
from taskrecipe.core.training.finite import FiniteGuard
from taskrecipe.core.training.meters import Meters

ROWS = [*range(1, 34), 63, 64, 65]
BATCH_SIZES = [1, 2, 3, 4, 8]


class Watched(Tag):
    """Keeps what it scores."""

    def score(self, predictions: dict[str, Any], rows: Any) -> dict[str, float]:
        self.seen = [[int(right), int(counted)] for right, counted in zip(*predictions.values(), strict=True)]
        return super().score(predictions, rows)


class Overflowing(Tag):
    """Its loss is infinite in the last process, and its gradients finite everywhere."""

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        found, accelerator = super().loss(model, batch), make_accelerator(self.spec)
        if accelerator.is_last_process:
            found.terms["loss"] = found.terms["loss"] + torch.inf
        return found


def toy_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Tag(toy_spec()).load_model(None).double()


def evaluations(accelerator: Any) -> dict[str, Any]:
    """For each number of rows and batch size: what was seen of each row, and the metrics."""
    recipe, model, found = Watched(toy_spec()), toy_model(), {}
    for count in ROWS:
        rows = tag_rows(count)
        for batch_size in BATCH_SIZES:
            running = Evaluation(recipe, "validation", rows, batch_size, 0, accelerator).run(model)
            try:
                while True:
                    next(running)
            except StopIteration as done:
                found[f"{count} rows by {batch_size}"] = [recipe.seen, done.value]
    return found


def gradients() -> dict[str, list[float]]:
    """Of a full and of the short last update, whole and in micro-batches."""
    found = {}
    for accumulate in (1, 2, 4):
        for number in (0, 4):
            spec = toy_spec(train={"accumulate": accumulate, "batch_size": 8}, launch={"device": "cpu"})
            recipe, accelerator = Tag(spec), make_accelerator(spec)
            splits = {"train": tag_rows(37), "validation": tag_rows(2)}
            loop = assemble(recipe, toy_model(), splits, accelerator)
            loop.model.train()
            recipe.backward(loop.model, next(loop.updates(number)))
            values = torch.cat([parameter.grad.flatten() for parameter in loop.module.parameters()])
            found[f"update {number} in {accumulate}"] = values.tolist()
    return found


def refusals() -> list[str]:
    """What each process says of an update whose loss is infinite in one of them."""
    spec = toy_spec(train={"batch_size": 8}, launch={"device": "cpu"})
    accelerator = make_accelerator(spec)
    splits = {"train": tag_rows(37), "validation": tag_rows(2)}
    loop = assemble(Overflowing(spec), toy_model(), splits, accelerator)
    try:
        loop.take(next(loop.updates(0)), Meters(accelerator.device), FiniteGuard(loop.optimizer))
        said = "taken"
    except NonFiniteError as error:
        said = str(error)
    return gather_object([said])


def everything() -> dict[str, Any]:
    accelerator = make_accelerator(toy_spec(launch={"device": "cpu"}))
    return {"evaluations": evaluations(accelerator), "gradients": gradients(), "refusals": refusals()}


if __name__ == "__main__":
    result = everything()
    if torch.distributed.get_rank() == 0:
        print(json.dumps(result))
    torch.distributed.destroy_process_group()
