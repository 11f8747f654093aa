"""Batches come from worker processes in order; if one of these dies, the run ends with a message and never hangs."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psutil
import pytest
import torch
from tests.support.toyruns import toy_loop, toy_spec
from torch.utils.data import Dataset

from taskrecipe.errors import RunStopped
from taskrecipe.training.data_workers import load_in_workers
from taskrecipe.training.events import Updated

pytestmark = pytest.mark.timeout(120)


class Numbers(Dataset[torch.Tensor]):
    """Every number is an item. `at_seven` is called in the worker that makes item 7."""

    def __init__(self, at_seven: Callable[[], Any] = lambda: None) -> None:
        self.at_seven = at_seven

    def __getitem__(self, number: int) -> torch.Tensor:
        if number == 7:
            self.at_seven()
        return torch.tensor(number)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def local_of_torch(name: str) -> Any:
    """A local variable of torch's function that runs in a worker."""
    frame = sys._getframe()
    while frame.f_code.co_name != "_worker_loop":
        assert frame.f_back
        frame = frame.f_back
    return frame.f_locals[name]


def die_with_the_lock_that_stops_workers() -> None:
    local_of_torch("done_event")._cond.acquire()
    kill_self()


def die_with_the_lock_of_the_queue() -> None:
    local_of_torch("data_queue")._wlock.acquire()
    kill_self()


def die_with_half_a_message_sent() -> None:
    time.sleep(0.5)  # until the items before it are received
    os.write(local_of_torch("data_queue")._writer.fileno(), struct.pack("!i", 1000) + b"half")
    kill_self()


def fail() -> None:
    raise RuntimeError("a fault in the recipe")


@pytest.mark.parametrize("workers", [1, 2])
def test_items_come_in_order(workers: int) -> None:
    assert list(map(int, load_in_workers(Numbers(), range(20), workers))) == list(range(20))


@pytest.mark.parametrize(
    "die",
    [kill_self, die_with_the_lock_that_stops_workers, die_with_the_lock_of_the_queue, die_with_half_a_message_sent],
)
def test_a_worker_that_dies_is_named(die: Callable[[], None]) -> None:
    with pytest.raises(RunStopped, match=r"^data worker \d+ was killed by SIGKILL. If it ran out of memory, lower"):
        list(load_in_workers(Numbers(die), range(20), workers=2))


def test_a_worker_that_exits_is_named() -> None:
    with pytest.raises(RunStopped, match=r"^data worker \d+ ended with exit code 3"):
        list(load_in_workers(Numbers(lambda: os._exit(3)), range(20), workers=2))


def test_an_error_in_a_worker_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="a fault in the recipe"):
        list(load_in_workers(Numbers(fail), range(20), workers=2))


@pytest.mark.parametrize("taken", [0, 1, 6])
def test_no_worker_is_left_even_if_the_next_item_takes_forever(taken: int) -> None:
    before = psutil.Process().children()
    with closing(load_in_workers(Numbers(lambda: time.sleep(3600)), range(20), workers=2)) as items:
        for _ in range(taken):
            next(items)
    assert psutil.Process().children() == before


def test_a_killed_worker_is_an_error_of_the_loop_and_not_of_what_runs_meanwhile() -> None:
    others = psutil.Process().children()
    spec = toy_spec(data={"workers": 2}, train={"epochs": 100_000}, evaluate={"every": "end"})
    events = toy_loop(spec).run()
    next(event for event in events if isinstance(event, Updated))
    victim, _ = (process for process in psutil.Process().children() if process not in others)
    victim.kill()
    for _ in range(20):
        time.sleep(0.02)  # torch's own handler of the signal would raise here
    with pytest.raises(RunStopped, match=f"data worker {victim.pid} was killed by SIGKILL"):
        for _ in events:
            pass
