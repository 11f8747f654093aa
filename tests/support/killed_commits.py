"""Kills a process that commits checkpoints, again and again, at random moments: FOLDER TRIALS SEED.

Each trial goes on from what the last one left. Prints the number of commits, or fails with what was lost.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
from pathlib import Path

import torch

from tests.support.checkpointing import names, store, tensor_contents, told_step

torch.set_num_threads(1)


def commit_for_ever(folder: Path, report: int) -> None:
    """Go on from the newest checkpoint; tell each step once it is committed."""
    checkpoints = store(folder, keep=2)
    newest = checkpoints.newest(on_damage=lambda message: sys.exit(f"damaged: {message}"))
    step = newest.step if newest else 0
    while True:
        step += 1
        checkpoints.commit(step, tensor_contents(step), best=step - step % 5 or None)
        os.write(report, step.to_bytes(8, "little"))


def one_trial(folder: Path, milliseconds: float) -> int:
    """Let a child commit for a while after it has begun, kill it, and return the last step that it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        commit_for_ever(folder, writing)
    os.close(writing)
    select.select([reading], [], [], 60)
    select.select([], [], [], milliseconds / 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told = b""
    while piece := os.read(reading, 1 << 16):
        told += piece
    os.close(reading)
    return int.from_bytes(told[-8:], "little")


def main(folder: Path, trials: int, seed: int) -> None:
    chance, last = random.Random(seed), 0
    for trial in range(trials):
        last = max(last, one_trial(folder, chance.uniform(0, 60)))
        damaged: list[str] = []
        newest = store(folder).newest(damaged.append)
        store(folder).recover()
        recovered = store(folder).newest(damaged.append)
        assert newest is not None, f"trial {trial}: nothing left"
        assert recovered is not None, f"trial {trial}: nothing left"
        assert not damaged, f"trial {trial}: {damaged}"
        assert newest.step >= last, f"trial {trial}: {last} was committed, {newest.step} is there"
        assert recovered.step == newest.step, f"trial {trial}: recovering made {recovered.step} of {newest.step}"
        assert told_step(recovered) == recovered.step
        assert float(recovered.tensors("model.safetensors")["weight"].unique()) == recovered.step
        leftovers = [name for name in names(folder) if name.startswith((".tmp", ".trash"))]
        assert not leftovers, f"trial {trial}: {leftovers}"
    print(last)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
