"""How long training stands still for a checkpoint, against what Accelerate's own saving of the same state takes."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

from taskrecipe.core.checkpoints.state import pack
from taskrecipe.core.checkpoints.store import Checkpoints, Contents

ROUNDS = 15
UPDATES = 5

pytestmark = pytest.mark.bench


class Bench:
    """The same model and AdamW state (192 MiB), saved in either way, both keeping two checkpoints."""

    def __init__(self, folder: Path) -> None:
        naming = {"automatic_checkpoint_naming": True, "total_limit": 2}
        self.accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(str(folder / "theirs"), **naming))
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(16)))
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        self.inputs = torch.randn(8, 1024)
        self.checkpoints = Checkpoints(folder / "ours", keep=2, run_id="bench", spec_hash="")
        self._steps = count(1)
        self.update()

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def contents(self) -> Contents:
        tensors, skeleton = pack(self.optimizer.state_dict())
        state = json.dumps(skeleton).encode()
        return {"model.safetensors": self.model.state_dict(), "optimizer.safetensors": tensors, "state.json": state}

    def begin(self) -> None:
        self.checkpoints.begin(next(self._steps), self.contents(), best=None)

    def commit(self) -> None:
        self.checkpoints.commit(next(self._steps), self.contents(), best=None)

    def save_state(self) -> None:
        self.accelerator.save_state()

    def settle(self) -> None:
        """Let no measurement pay for what the one before has left to be written."""
        self.checkpoints.wait()
        os.sync()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_training_stands_still_no_longer_than_for_save_state(bench: Bench, capsys: pytest.CaptureFixture[str]):
    begin, commit, theirs = _interleaved(bench, [bench.begin, bench.commit, bench.save_state])
    with capsys.disabled():
        print(f"\nstall per checkpoint of {bench.checkpoints.at('last').bytes / 2**20:.0f} MiB, {ROUNDS} rounds")
        print(f"  accelerator.save_state (no fsync, no checksum)   {_summary(theirs)}")
        print(f"  begin (fsync and sha256 beside the training)     {_summary(begin)}  {_ratio(begin, theirs)}")
        print(f"  commit (fsync and sha256 waited for)             {_summary(commit)}  {_ratio(commit, theirs)}")
    assert statistics.median(begin) <= statistics.median(theirs)


def test_training_with_checkpoints_takes_no_longer_than_with_save_state(
    bench: Bench, capsys: pytest.CaptureFixture[str]
):
    def updates(save: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            save()
            for _ in range(UPDATES):  # long enough for a commit to end meanwhile
                bench.update()

        return run

    ours, theirs, none = _interleaved(bench, [updates(bench.begin), updates(bench.save_state), updates(lambda: None)])
    with capsys.disabled():
        print(f"\n{UPDATES} updates and one checkpoint on {os.cpu_count()} cores, {ROUNDS} rounds")
        for name, seconds in (("no checkpoint", none), ("accelerator.save_state", theirs), ("begin", ours)):
            print(f"  {name:24} {_summary(seconds)}  {_ratio(seconds, none)}")
    assert statistics.median(ours) <= 1.25 * statistics.median(theirs)


def _interleaved(bench: Bench, calls: list[Callable[[], None]]) -> list[list[float]]:
    """Seconds of each call, in turns that begin with another one each; the first turns are left out."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(ROUNDS + 1):
        for index in range(len(calls)):
            chosen = (turn + index) % len(calls)
            bench.settle()
            start = time.perf_counter()
            calls[chosen]()
            if turn:
                seconds[chosen].append(time.perf_counter() - start)
    return seconds


def _summary(seconds: list[float]) -> str:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return f"median {middle:.3f} s (quartiles {low:.3f}–{high:.3f})"


def _ratio(seconds: list[float], reference: list[float]) -> str:
    return f"{statistics.median(seconds) / statistics.median(reference):.2f} ×"
