"""Data workers: processes that make batches in the background, and what happens when one of them is killed.

Torch's `DataLoader` starts them and moves the batches. It also watches them, in two ways that don't suit a run:

- A signal handler raises an error when a worker dies, wherever the program is then. Here only the reader of the next
  batch gets an error.
- At the end it asks the workers to stop, by an event that has a lock. If a worker was killed while it held the lock,
  the program would wait forever. Here the workers are killed at the end, and torch does nothing.
"""

from __future__ import annotations

import multiprocessing.connection
import signal
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Dataset

from taskrecipe.errors import RunStopped
from taskrecipe.system.exit_codes import describe_exit

Item = TypeVar("Item")

POLL = 1.0
"""How often the workers are looked at while an item is late, in seconds."""


def load_in_workers(dataset: Dataset[Item], keys: Iterable[Any], workers: int) -> Generator[Item, None, None]:
    """Yield the items of these keys in order, made in worker processes before they are needed. Close it to end them."""
    loader = DataLoader(
        dataset,
        sampler=keys,
        batch_size=None,
        num_workers=workers,
        collate_fn=_return_item,
        pin_memory=torch.accelerator.is_available(),
        generator=torch.Generator(),  # the loader seeds its workers from it, not from the generator that dropout uses
        worker_init_fn=_start_worker,
    )
    items: Any = iter(loader)
    _remove_worker_pids(id(items))  # torch's signal handler forgets the workers
    items._worker_pids_set = False
    items._shutdown_workers = _leave_workers
    items._workers_done_event = threading.Event()  # torch's own is the one with the lock
    with ThreadPoolExecutor(1) as thread:
        try:
            coming = thread.submit(next, items, None)
            while (item := _wait_for_item(coming, items)) is not None:
                coming = thread.submit(next, items, None)  # it is received while the one before is used
                yield item
        finally:
            _end_workers(items)


def _wait_for_item(coming: Future[Any], items: Any) -> Any:
    """Return the item that a thread receives. Raise `RunStopped` if a worker died."""
    dead: list[Any] = []
    while not (coming.done() or wait([coming], POLL).done):
        if dead := dead or _find_dead(items):
            # It may have left half a message; the thread would wait for the rest while another worker can write.
            _end_workers(items)
    try:
        return coming.result()
    except (RuntimeError, EOFError, OSError) as error:
        # The thread may see a connection close before the worker's end shows.
        is_cut_off = not isinstance(error, RuntimeError)
        dead = dead or _find_dead(items, timeout=POLL if is_cut_off else 0.0)
        if not dead:
            raise
        raise RunStopped(
            f"{', '.join(map(_describe_death, dead))}. If it ran out of memory, lower [data].workers. "
            "Checkpoints are intact: continue with `recipe resume`"
        ) from error


def _find_dead(items: Any, timeout: float = 0.0) -> list[Any]:
    """Return the workers that have ended. Wait up to `timeout` seconds for the first."""
    ended = multiprocessing.connection.wait([worker.sentinel for worker in items._workers], timeout)
    return [worker for worker in items._workers if worker.sentinel in ended]


def _describe_death(worker: Any) -> str:
    """Say how a worker ended. Only once the thread is done: while it asks for the exit code too, one gets none."""
    worker.join()
    return f"data worker {worker.pid} {describe_exit(worker.exitcode)}"


def _end_workers(items: Any) -> None:
    """Kill the workers. A thread that waits for an item of theirs gets an error."""
    for worker in items._workers:
        worker.kill()
    for worker in items._workers:
        worker.join()
    for queue in items._index_queues:
        queue.cancel_join_thread()  # nobody reads it any more
    if items._pin_memory:
        items._pin_memory_thread_done_event.set()
    else:
        items._worker_result_queue._writer.close()


def _leave_workers() -> None:
    """Take the place of torch's way to stop the workers."""


def _return_item(item: Any) -> Any:
    return item


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    for signum in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C goes to the whole group; the main process stops the run
        signal.signal(signum, signal.SIG_IGN)
