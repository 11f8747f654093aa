"""What the toy recipe gives in one process or in each of several: evaluations of every size, and gradients."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from taskrecipe.errors import NonFiniteError
from taskrecipe.training.evaluation import Evaluation
from taskrecipe.training.exchange import broadcast_json, gather_values
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.nestings import same
from tests.support.toyruns import toy_spec
from tests.support.toys import Tag, count_right, tag_rows

ROWS = [*range(1, 34), 63, 64, 65]
BATCH_SIZES = [1, 2, 3, 4, 8]


class Watched(Tag):
    """Keeps what it scores: how many tags of each row are right, and how many there are."""

    def score(self, predictions: dict[str, Any], rows: Any) -> dict[str, float]:
        self.seen = [list(count_right(*pair)) for pair in zip(predictions["tags"], rows["labels"], strict=True)]
        return super().score(predictions, rows)


class Overflowing(Tag):
    """Its loss is infinite in the last process, and its gradients finite everywhere."""

    def loss(self, outputs: Any, batch: Any, training: bool) -> Any:
        terms = super().loss(outputs, batch, training)
        if make_accelerator(self.spec).is_last_process:
            terms["loss"] = terms["loss"] + torch.inf
        return terms


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
                found[f"{count} rows by {batch_size}"] = [recipe.seen, done.value.metrics]
    return found


def gradients() -> dict[str, list[float]]:
    """Of a full and of the short last update, whole and in micro-batches."""
    found = {}
    for accumulate in (1, 2, 4):
        for number in (0, 4):
            spec = toy_spec(train={"accumulate": accumulate, "batch_size": 8}, launch={"device": "cpu"})
            recipe, accelerator = Tag(spec), make_accelerator(spec)
            splits = {"train": tag_rows(37), "validation": tag_rows(2)}
            loop = make_loop(recipe, toy_model(), splits, accelerator)
            loop.model.train()
            next(loop.state.updates(number)).compute_gradients()
            values = torch.cat([parameter.grad.flatten() for parameter in loop.state.module.parameters()])
            found[f"update {number} in {accumulate}"] = values.tolist()
    return found


def refusals() -> list[str]:
    """What each process says of an update whose loss is infinite in one of them."""
    spec = toy_spec(train={"batch_size": 8}, launch={"device": "cpu"})
    accelerator = make_accelerator(spec)
    splits = {"train": tag_rows(37), "validation": tag_rows(2)}
    loop = make_loop(Overflowing(spec), toy_model(), splits, accelerator)
    try:
        loop.take(next(loop.state.updates(0)))
        said = "taken"
    except NonFiniteError as error:
        said = str(error)
    return gather_values(said)


def _nesting(process: int) -> dict[str, Any]:
    """A value that is another one, and of another size, in each process."""
    numbers = np.arange(3 + process)
    rows = list(torch.arange(6.0).reshape(2, 3) + process)
    inner = {(process, "key"): [numbers, (np.float16(0.5) * numbers).astype("float16"), b"x" * process]}
    return {"rows": rows, "text": f"process {process}", "nothing": None, "inner": (inner, float("nan"), 2**80)}


def exchange(process: int, processes: int) -> list[bool]:
    """Whether values arrive in this process as they were, without pickle."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
            patch.setattr(pickle, name, None)
        gathered = gather_values(_nesting(process))
        main = broadcast_json({"process": process, "values": [1.5, None, "é"]})
    expected = [_nesting(number) for number in range(processes)]
    return [same(gathered, expected), main == {"process": 0, "values": [1.5, None, "é"]}]


def everything() -> dict[str, Any]:
    accelerator = make_accelerator(toy_spec(launch={"device": "cpu"}))
    exchanged = exchange(accelerator.process_index, accelerator.num_processes)
    return {
        "evaluations": evaluations(accelerator),
        "gradients": gradients(),
        "refusals": refusals(),
        "exchanged": gather_values(exchanged),
    }


if __name__ == "__main__":
    result = everything()
    if torch.distributed.get_rank() == 0:
        print(json.dumps(result))
    torch.distributed.destroy_process_group()
