"""Predicting windows in this process, or in several. They come back in their order, whoever predicted them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

import torch

from taskrecipe.errors import RunStopped
from taskrecipe.use.predictor import Outcome, Predictor
from taskrecipe.use.records import Record
from taskrecipe.use.trained import load_trained

if TYPE_CHECKING:
    from taskrecipe.use.predict import Plan

_AHEAD = 2
"""Windows that wait for each process while it works on one: the next is there when it is done."""


@dataclass(frozen=True)
class Window:
    """Rows that are predicted together, with their number and that of their first row."""

    number: int
    first: int
    records: list[Record]


Predicted = Iterator[tuple[Window, list[Outcome]]]


def predict_windows(plan: Plan, windows: Iterator[Window], *, images: bool) -> Predicted:
    """Yield each window with what became of its rows, in order."""
    if plan.processes == 1:
        with ExitStack() as stack:
            predictor = make_predictor(plan, stack, images=images)
            for window in windows:
                yield window, predictor.predict(window.records, window.first)
        return
    yield from _predict_in_processes(plan, windows, images)


def make_predictor(plan: Plan, stack: ExitStack, *, images: bool) -> Predictor:
    """Load the run's model, and keep it on its device until `stack` is closed."""
    trained = load_trained(plan.run, plan.at, plan.settings)
    accelerator, model = stack.enter_context(trained.on_device())
    return Predictor(trained.recipe, model, accelerator, plan.wanted(images=images))


def _predict_in_processes(plan: Plan, windows: Iterator[Window], images: bool) -> Predicted:
    threads = max(1, torch.get_num_threads() // plan.processes)
    pool = ProcessPoolExecutor(
        plan.processes, get_context("spawn"), initializer=_start, initargs=(plan, images, threads, os.getpid())
    )
    waiting: deque[tuple[Window, Future[list[Outcome]]]] = deque()
    try:
        for window in windows:
            waiting.append((window, pool.submit(_predict, window)))
            if len(waiting) > _AHEAD * plan.processes:
                yield _receive(waiting)
        while waiting:
            yield _receive(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _receive(waiting: deque[tuple[Window, Future[list[Outcome]]]]) -> tuple[Window, list[Outcome]]:
    window, future = waiting.popleft()
    try:
        return window, future.result()
    except BrokenProcessPool as error:
        raise RunStopped(
            "a process that predicted rows was killed. If it ran out of memory, lower --processes or --batch-size. "
            "What is done is kept: run the same command again to go on"
        ) from error


_predictor: Predictor | None = None
"""What a process predicts with."""
_device = ExitStack()
"""Holds the model on its device until the process ends."""


def _start(plan: Plan, images: bool, threads: int, parent: int) -> None:
    """Set up a process: it ends with the one that started it."""
    global _predictor
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to the whole group; the main process ends this one
    torch.set_num_threads(threads)
    _predictor = make_predictor(plan, _device, images=images)


def _predict(window: Window) -> list[Outcome]:
    assert _predictor is not None  # noqa: S101 - `_start` has run
    return _predictor.predict(window.records, window.first)
