"""Kills one of three processes that commit checkpoints together, at random moments: FOLDER TRIALS SEED.

Each trial goes on from what the last one left. Prints the number of commits, or fails with what was lost.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair

import torch

from taskrecipe.checkpoints.manifest import FileRecord
from taskrecipe.checkpoints.safetensors_file import Shard
from taskrecipe.checkpoints.store import Checkpoints, Contents, PartWriter
from taskrecipe.checkpoints.stored_tensors import part_name
from tests.support.checkpointing import RUN_ID, names, store, told_step

torch.set_num_threads(1)

PROCESSES, ROWS = 3, 51


class Sockets:
    """Connects processes for a test: the first one has a socket to each other, which have one to the first."""

    def __init__(self, sockets: list[socket], is_main: bool) -> None:
        self.sockets, self.is_main = sockets, is_main

    def meet(self) -> None:
        self.exchange_records({})

    def exchange_records(self, records: dict[str, FileRecord]) -> dict[str, FileRecord]:
        own = {name: [record.bytes, record.sha256] for name, record in records.items()}
        if self.is_main:
            for each in self.sockets:
                own |= json.loads(self._receive(each))
        for each in self.sockets:
            each.send(json.dumps(own).encode())
        everyone = own if self.is_main else json.loads(self._receive(self.sockets[0]))
        return {name: FileRecord(*record) for name, record in everyone.items()}

    def _receive(self, each: socket) -> bytes:
        content = each.recv(1 << 16)
        if not content:
            os._exit(0)  # another process is dead
        return content


def shard_contents(step: int, process: int) -> Contents:
    """The rows of one process, whose content tells the step."""
    whole = torch.full((ROWS, 40), float(step))
    rows = -(-ROWS // PROCESSES)
    shard = Shard(whole[process * rows : (process + 1) * rows], process * rows * 40, tuple(whole.shape))
    files = {
        part_name(file, process, PROCESSES): {"weight": shard}
        for file in ("model.safetensors", "optimizer.safetensors")
    }
    return {**files, **({"state.json": json.dumps({"step": step}).encode()} if process == 0 else {})}


def commit_for_ever(folder: Path, process: int, sockets: list[socket], report: int) -> None:
    """Go on from the newest checkpoint; the first process tells each step once it is committed."""
    peers = Sockets(sockets, process == 0)
    checkpoints = Checkpoints(folder, keep=2, run_id=RUN_ID, peers=peers)
    newest = checkpoints.newest(on_damage=lambda message: sys.exit(f"damaged: {message}"))
    step = newest.step if newest else 0
    peers.meet()  # all have seen the same one
    writer = checkpoints if process == 0 else PartWriter(folder, run_id=RUN_ID, peers=peers)
    while True:
        step += 1
        writer.begin(step, shard_contents(step, process), best=step - step % 5 or None)
        writer.wait()
        if process == 0:
            os.write(report, step.to_bytes(8, "little"))


def start_processes(folder: Path) -> tuple[list[int], int]:
    """Return the ids of the processes, and where the first one tells of its commits."""
    reading, writing = os.pipe()
    pairs = [socketpair(AF_UNIX, SOCK_SEQPACKET) for _ in range(PROCESSES - 1)]
    children = []
    for process in range(PROCESSES):
        child = os.fork()
        if child == 0:
            os.close(reading)
            mine = [pair[0] for pair in pairs] if process == 0 else [pairs[process - 1][1]]
            for one in (one for pair in pairs for one in pair if one not in mine):
                one.close()
            try:
                commit_for_ever(folder, process, mine, writing)
            finally:
                os._exit(0)
        children.append(child)
    os.close(writing)
    for pair in pairs:
        for one in pair:
            one.close()
    return children, reading


def one_trial(folder: Path, milliseconds: float, victim: int) -> int:
    """Let processes commit for a while, kill one, and return the last step that was told."""
    children, reading = start_processes(folder)
    select.select([reading], [], [], 60)
    select.select([], [], [], milliseconds / 1000)
    os.kill(children[victim], signal.SIGKILL)
    select.select([], [], [], 0.05)  # the others may go on until they notice
    for child in children:
        if child != children[victim]:
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
        last = max(last, one_trial(folder, chance.uniform(0, 60), trial % PROCESSES))
        damaged: list[str] = []
        newest = store(folder).newest(damaged.append)
        store(folder).recover()
        recovered = store(folder).newest(damaged.append)
        assert newest is not None, f"trial {trial}: nothing left"
        assert recovered is not None, f"trial {trial}: nothing left"
        assert not damaged, f"trial {trial}: {damaged}"
        assert newest.step >= last, f"trial {trial}: {last} was committed, {newest.step} is there"
        assert recovered.step == newest.step == told_step(recovered), f"trial {trial}: {recovered.step}, {newest.step}"
        weight = recovered.tensors("model.safetensors")["weight"]
        assert weight.shape == (ROWS, 40)
        assert float(weight.unique()) == recovered.step
        leftovers = [name for name in names(folder) if name.startswith((".tmp", ".trash"))]
        assert not leftovers, f"trial {trial}: {leftovers}"
    print(last)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
