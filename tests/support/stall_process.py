"""Checkpoints of a sharded model in each of several processes, by us and by torch: seconds until training may go on.

`python -m tests.support.stall_process FOLDER ROUNDS` prints one JSON object with the seconds of each save.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from taskrecipe.checkpoints.store import Checkpoints, PartWriter
from taskrecipe.recipe import Recipe
from taskrecipe.sharding.module import shard_module
from taskrecipe.sharding.peers import CheckpointPeers
from taskrecipe.training.exchange import max_over_processes, wait_for_everyone
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.toyruns import toy_spec

WIDTH, LAYERS = 1024, 16


class Wide(Recipe):
    """Wide linear layers, which learn to return zeros."""

    def loss_counts(self, batch: Any) -> dict[str, float]:
        return {"loss": float(len(batch["inputs"]))}

    def forward(self, model: Any, batch: Any) -> Any:
        return model(batch["inputs"])

    def loss(self, outputs: Any, batch: Any, training: bool) -> dict[str, Any]:
        return {"loss": outputs.square().mean()}


def make_sharded_loop() -> Loop:
    """Return a loop whose weights and AdamW state (192 MiB) are sharded, after one update."""
    spec = toy_spec(
        train={"epochs": 100_000, "batch_size": 8, "learning_rate": 1e-3},
        evaluate={"best": "loss", "every": "end"},
        launch={"device": "cpu", "shard": "full"},
    )
    accelerator = make_accelerator(spec)
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    shard_module(module, spec, accelerator)
    inputs = np.random.default_rng(0).random((8, WIDTH), dtype=np.float32)
    rows = Dataset.from_dict({"inputs": inputs}).with_format("numpy")
    loop = make_loop(Wide(spec), module, {"train": rows, "validation": rows}, accelerator)
    loop.take(next(loop.state.updates(0)))
    return loop


class Ours:
    """The checkpoints of a run."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        peers = CheckpointPeers()
        self.loop, self.step = loop, 0
        kind: Any = Checkpoints if distributed.get_rank() == 0 else PartWriter
        self.store = kind(folder, run_id="bench", peers=peers, **({"keep": 2} if kind is Checkpoints else {}))

    def begin(self) -> Callable[[], object]:
        self.step += 1
        self.store.begin(self.step, self.loop.state.contents(), best=None)
        return self.store.wait


class Theirs:
    """torch's own, which also copy the state and write it in the background; two are kept here too."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop, self.folder, self.step = loop, folder, 0
        self.group = distributed.new_group(backend="gloo")

    def begin(self) -> Callable[[], object]:
        self.step += 1
        model, optimizer = get_state_dict(self.loop.state.module, self.loop.state.optimizer)
        path = self.folder / str(self.step)
        saving = dcp.async_save({"model": model, "optimizer": optimizer}, checkpoint_id=path, process_group=self.group)
        return saving.result


def measure(contender: Ours | Theirs) -> float:
    """Return the seconds until the slowest process may go on."""
    wait_for_everyone()
    start = time.perf_counter()
    finish = contender.begin()
    seconds = time.perf_counter() - start
    finish()
    os.sync()
    return max_over_processes([int(seconds * 1e9)])[0] / 1e9


def main(folder: Path, rounds: int) -> None:
    loop = make_sharded_loop()
    contenders = {"torch": Theirs(loop, folder / "theirs"), "ours": Ours(loop, folder / "ours")}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        order = list(contenders.items())
        for name, contender in order if number % 2 else reversed(order):
            taken = measure(contender)
            if number:  # the first round warms up
                seconds[name].append(taken)
        if distributed.get_rank() == 0 and number > 1:
            shutil.rmtree(folder / "theirs" / str(number - 1))
    if distributed.get_rank() == 0:
        print(json.dumps(seconds))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    main(Path(sys.argv[1]), int(sys.argv[2]))
    distributed.destroy_process_group()
