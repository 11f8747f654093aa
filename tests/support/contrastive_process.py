"""One process of several that train `two_tower` in double precision without dropout; the first prints its losses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch

from taskrecipe.training.events import Updated
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.textruns import NO_DROPOUT, ready, text_spec


def losses(accumulate: int) -> list[float]:
    """The loss of each of three updates, the last of which has fewer pairs than there are micro-batches."""
    train = {"epochs": 1, "batch_size": 8, "accumulate": accumulate, "learning_rate": 1e-2}
    spec = text_spec(
        "two_tower", {"temperature": 0.5}, train=train, evaluate={"every": "end"}, launch={"device": "cpu"}
    )
    run = ready(spec, rows=19)
    torch.manual_seed(0)
    module = run.recipe.load_model(replace(run.source, config_values=NO_DROPOUT["bert"])).double()
    accelerator = make_accelerator(spec)
    loop = make_loop(run.recipe, module, run.rows, accelerator)
    return [event.loss for event in loop.run() if isinstance(event, Updated)]


if __name__ == "__main__":
    found = losses(int(sys.argv[1]))
    if torch.distributed.get_rank() == 0:
        print(json.dumps(found))
    torch.distributed.destroy_process_group()
