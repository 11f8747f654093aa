"""A model with batch norms, in processes that hold all of it or a part: what an evaluation measures in each."""

from __future__ import annotations

import json
import warnings

import numpy as np
import torch
from datasets import Dataset
from torch import distributed

from taskrecipe.sharding.module import shard_module
from taskrecipe.training.exchange import gather_values
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.stall_process import Wide
from tests.support.toyruns import toy_spec


def train(shard: str) -> list[dict[str, float]]:
    """Return the metrics that each process has measured."""
    spec = toy_spec(
        train={"batch_size": 8, "updates": 4},
        evaluate={"best": "loss", "every": "end"},
        launch={"device": "cpu", "shard": shard},
    )
    accelerator = make_accelerator(spec)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
    if shard != "none":
        shard_module(module, spec, accelerator)
    inputs = np.random.default_rng(0).random((40, 6), dtype=np.float32)
    rows = Dataset.from_dict({"inputs": inputs}).with_format("numpy")
    loop = make_loop(Wide(spec), module, {"train": rows, "validation": rows}, accelerator)
    list(loop.run())
    return gather_values(loop.progress.metrics)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    found = {shard: train(shard) for shard in ("none", "full")}
    if distributed.get_rank() == 0:
        print(json.dumps(found))
    distributed.destroy_process_group()
