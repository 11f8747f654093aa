"""How long training waits for a checkpoint, against what Accelerate's own saving of the same state takes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from datasets import Dataset
from tests.support.toyruns import toy_spec

from taskrecipe.checkpoints.store import Checkpoints
from taskrecipe.recipe import Recipe
from taskrecipe.training.events import Event, Saved
from taskrecipe.training.setup import make_loop

ROUNDS = 15
UPDATES = 5
WIDTH = 1024

pytestmark = pytest.mark.bench


class Wide(Recipe):
    """Sixteen wide linear layers, which learn to return zeros."""

    def loss_counts(self, batch):
        return {"loss": float(len(batch["inputs"]))}

    def forward(self, model, batch):
        return model(batch["inputs"])

    def loss(self, outputs, batch, training):
        return {"loss": outputs.square().mean()}


class Bench:
    """A loop whose model and AdamW state (192 MiB) are saved by it and by Accelerate, both keeping two checkpoints."""

    def __init__(self, folder: Path) -> None:
        naming = {"automatic_checkpoint_naming": True, "total_limit": 2}
        self.accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(str(folder / "theirs"), **naming))
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(16)))
        rows = Dataset.from_dict({"inputs": np.random.default_rng(0).random((8, WIDTH), dtype=np.float32)})
        spec = toy_spec(
            train={"epochs": 100_000, "batch_size": 8, "learning_rate": 1e-3},
            evaluate={"best": "loss", "every": "end"},
            checkpoint={"every": 1},
            log={"every": 10},
        )
        self.store = Checkpoints(folder / "ours", keep=2, run_id="bench")
        rows = rows.with_format("numpy")
        splits = {"train": rows, "validation": rows}
        self.loop = make_loop(Wide(spec), model, splits, self.accelerator, store=self.store)
        self.accelerator.prepare_optimizer(self.loop.state.optimizer)  # so that Accelerate saves it too
        self.apart = Checkpoints(folder / "apart", keep=2, run_id="bench")
        self._updates = self.loop.state.updates(0)
        self.update()

    def update(self) -> None:
        self.loop.take(next(self._updates))

    def begin(self) -> None:
        self.store.begin(self.loop.progress.step, self.loop.state.contents(), best=None)

    def commit(self) -> None:
        self.apart.commit(self.loop.progress.step, self.loop.state.contents(), best=None)

    def save_state(self) -> None:
        self.accelerator.save_state()

    def settle(self) -> None:
        """Let no measurement pay for what the one before has left to be written."""
        for store in (self.store, self.apart):
            store.drain()
        os.sync()

    def measure(self, call: Callable[[], None]) -> float:
        """The seconds that a call takes."""
        self.settle()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_training_waits_no_longer_than_for_save_state(bench: Bench, capsys: pytest.CaptureFixture[str]):
    """The loop's own number, `Saved.seconds`: from asking for the state until training goes on."""
    stalls, commits, theirs = [], [], []
    for saved in _saves(bench.loop.run()):
        stalls.append(saved.seconds)
        pair = [(commits, bench.commit), (theirs, bench.save_state)]
        for seconds, call in pair if len(stalls) % 2 else reversed(pair):
            seconds.append(bench.measure(call))
        bench.settle()
    with capsys.disabled():
        print(f"\nstall per checkpoint of {bench.store.at('last').bytes / 2**20:.0f} MiB, {ROUNDS} rounds")
        print(f"  accelerator.save_state (no fsync, no checksum)       {_summary(theirs)}")
        print(f"  the loop (fsync and sha256 in the background)        {_summary(stalls)}  {_ratio(stalls, theirs)}")
        print(f"  commit (waits for fsync and sha256)                  {_summary(commits)}  {_ratio(commits, theirs)}")
    assert statistics.median(stalls) <= statistics.median(theirs)


def _saves(events: Iterator[Event]) -> Iterator[Saved]:
    """The first saves of a run, all but the very first one, which warms up."""
    saves = (event for event in events if isinstance(event, Saved))
    next(saves)
    for _ in range(ROUNDS):
        yield next(saves)


def test_updates_right_after_a_checkpoint(bench: Bench, capsys: pytest.CaptureFixture[str]):
    """The worst moment: both cores are busy with training while the checkpoint is hashed and synced.

    `save_state` does neither: its bytes reach the disk later, in the time of another round. Our commit is synced
    meanwhile, and hashed in part: it ends some updates later.
    """

    def updates(save: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            save()
            for _ in range(UPDATES):
                bench.update()

        return run

    ours, theirs, none = _interleaved(bench, [updates(bench.begin), updates(bench.save_state), updates(lambda: None)])
    with capsys.disabled():
        print(f"\n{UPDATES} updates and one checkpoint on {os.cpu_count()} cores, {ROUNDS} rounds")
        for name, seconds in (("no checkpoint", none), ("accelerator.save_state", theirs), ("recipe", ours)):
            print(f"  {name:24} {_summary(seconds)}  {_ratio(seconds, none)}")
    assert statistics.median(ours) <= 1.25 * statistics.median(theirs)


def _interleaved(bench: Bench, calls: list[Callable[[], None]]) -> list[list[float]]:
    """Seconds of each call, in turns that begin with another one each; the first turns are left out."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(ROUNDS + 1):
        for index in range(len(calls)):
            chosen = (turn + index) % len(calls)
            taken = bench.measure(calls[chosen])
            if turn:
                seconds[chosen].append(taken)
    return seconds


def _summary(seconds: list[float]) -> str:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return f"median {middle:.3f} s (quartiles {low:.3f}–{high:.3f})"


def _ratio(seconds: list[float], reference: list[float]) -> str:
    return f"{statistics.median(seconds) / statistics.median(reference):.2f} ×"
