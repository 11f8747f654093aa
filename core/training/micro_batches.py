"""How finely updates are cut into micro-batches: as the spec says, or as finely as memory needs.

With `[train].accumulate = "auto"`, an update that runs out of memory in any process is dropped, cut twice as finely and
computed again: the same rows, the same randomness, the same sum of gradients. No process may wait for another one
meanwhile, so gradients are exchanged only after all processes have agreed that theirs are complete; where weights are
sharded, the processes agree before each exchange (`taskrecipe.sharding.agreement`). After a while, a coarser cut is
tried again, since the update that did not fit may have had unusually long rows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import distributed

from taskrecipe.errors import RunStopped
from taskrecipe.training.exchange import has_peers, max_over_processes
from taskrecipe.vision.batch_norm import find_batch_norms

if TYPE_CHECKING:
    from taskrecipe.sharding.agreement import Agreement

WAIT = 200
"""Updates that must fit before a coarser cut is tried. Doubled after each try in vain."""

LONGEST_WAIT = 100_000

BUCKET_BYTES = 25 * 2**20
"""Gradients that are exchanged together."""


class Cut:
    """How many micro-batches each process makes of an update. All processes always have the same number."""

    def __init__(self, accumulate: int | Literal["auto"], most: int) -> None:
        self.is_fixed = accumulate != "auto"
        self.parts = 1 if accumulate == "auto" else accumulate
        self.most = most
        """The number of rows that a process has in an update: it can't be cut finer."""
        self.fitted = 0
        """Updates in a row that fitted."""
        self.wait = WAIT
        self.finest = 1
        self.tries_coarser = False
        self.agreement: Agreement | None = None
        """How processes stop a pass together; None where no pass waits for another process."""
        self._news: str | None = None

    @property
    def rows(self) -> int:
        """The number of rows in a micro-batch, at most."""
        return -(-self.most // self.parts)

    def refine(self, problem: str) -> None:
        """Cut finer from now on, because an update did not fit."""
        if self.parts >= self.most:
            raise RunStopped(
                f"out of memory even with micro-batches of one row: {problem}. Make rows shorter or smaller, set "
                "[train].gradient_checkpointing = true, or use a smaller model"
            )
        if self.tries_coarser:
            self.wait = min(2 * self.wait, LONGEST_WAIT)
        self.parts, self.fitted, self.tries_coarser = min(2 * self.parts, self.most), 0, False
        if self.parts > self.finest:
            self.finest = self.parts
            self._news = (
                f"an update ran out of memory: it is now split into {self.parts} micro-batches a process, of "
                f"{self.rows} rows. This does not change results"
            )

    def record_fit(self) -> None:
        """Count an update that fitted, and try a coarser cut after a while."""
        self.fitted, self.tries_coarser = self.fitted + 1, False
        if self.fitted >= self.wait and self.parts > 1:
            self.parts, self.fitted, self.tries_coarser = max(1, self.parts // 2), 0, True

    def take_news(self) -> str | None:
        """Return what the user should know, once."""
        news, self._news = self._news, None
        return news

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must keep: nothing if the spec says how to cut."""
        kept = ("parts", "fitted", "wait", "finest", "tries_coarser")
        return {} if self.is_fixed else {name: getattr(self, name) for name in kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, unless the spec has changed to a fixed number."""
        for name, value in state.items() if not self.is_fixed else ():
            setattr(self, name, value)
        self.parts = min(self.parts, self.most) if not self.is_fixed else self.parts


def compute_within_memory(cut: Cut, module: torch.nn.Module, attempt: Callable[[], None]) -> None:
    """Run `attempt`, which adds up gradients, with ever finer cuts until it fits in every process.

    Then exchange the gradients between processes, unless a sharded model has done so already. `attempt` must start from
    nothing each time it is called.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    while True:
        statistics = [(buffer, buffer.clone()) for norm in find_batch_norms(module) for buffer in norm.buffers()]
        find_problem = partial(_find_problem, attempt)
        problem = cut.agreement.run(find_problem) if cut.agreement else find_problem()
        with_gradient = [int(parameter.grad is not None) for parameter in parameters]
        failed, *used = max_over_processes([int(problem is not None), *with_gradient])
        if not failed:
            break
        for buffer, value in statistics:  # a forward pass changes them
            buffer.copy_(value)
        if cut.agreement:
            cut.agreement.start_again()
        module.zero_grad(set_to_none=True)
        _free_memory()
        cut.refine(problem or "in another process")
    cut.record_fit()
    if has_peers() and cut.agreement is None:
        _average_gradients([parameter for parameter, is_used in zip(parameters, used, strict=True) if is_used])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough, on a device or in the machine."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    message = str(error).lower()
    signs = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, RuntimeError) and any(sign in message for sign in signs)


def _find_problem(attempt: Callable[[], None]) -> str | None:
    """Run `attempt`, and return in one line why memory was not enough; None if it was."""
    try:
        attempt()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None


def _free_memory() -> None:
    """Return what the failed attempt held: the error's frames are gone, so the graph can go too."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def _average_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Replace each gradient by its mean over all processes. One without rows for a parameter has none, which is 0."""
    bucket: list[torch.Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        if sum(gradient.nbytes for gradient in bucket) >= BUCKET_BYTES:
            _average_bucket(bucket)
            bucket = []
    _average_bucket(bucket)


def _average_bucket(gradients: list[torch.Tensor]) -> None:
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):  # in the same order everywhere
        same = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.reshape(-1) for gradient in same]).div_(distributed.get_world_size())
        distributed.all_reduce(flat)
        means = torch.split(flat, [gradient.numel() for gradient in same])
        for gradient, mean in zip(same, means, strict=True):
            gradient.copy_(mean.view_as(gradient))
