"""Agreeing, before each exchange of a sharded model, that every process still has enough memory.

A process that runs out of memory in the middle of a pass would leave the others waiting for its weights or gradients.
So each exchange has two steps. First a process takes the memory that it needs for it, and all exchange one flag. Only
if nobody has failed, the weights or gradients follow. A process that has run out of memory, wherever that was, sends
its flag once, where the others are about to send theirs. So all stop at the same exchange and start again together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from typing_extensions import override

from taskrecipe.errors import UsageError
from taskrecipe.training.exchange import max_over_processes

ELSEWHERE = "in another process"


class PeerOutOfMemoryError(Exception):
    """Another process has run out of memory."""


class Agreement:
    """Lets the processes of a sharded model stop a pass together."""

    def __init__(self, module: torch.nn.Module) -> None:
        if not hasattr(FSDPModule, "reset_iter_state"):
            raise UsageError("[train].accumulate = 'auto' with [launch].shard needs torch 2.13 or newer")
        self._is_active = False
        self.module: Any = module
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_custom_all_gather(AgreedGather(self))
                part.set_custom_reduce_scatter(AgreedScatter(self))

    def require_memory(self) -> None:
        """Raise if a process has run out of memory. Called in all of them before an exchange."""
        if self._is_active and self._exchange_flag(False):
            raise PeerOutOfMemoryError

    def run(self, attempt: Callable[[], str | None]) -> str | None:
        """Run `attempt`, which returns why memory was not enough; return that, also if it was so elsewhere."""
        self._is_active = True
        try:
            problem = attempt()
        except PeerOutOfMemoryError:
            return ELSEWHERE
        finally:
            self._is_active = False
        # The others learn of it where they would exchange something, or here if they have reached the end.
        has_failed = self._exchange_flag(problem is not None)
        return problem or (ELSEWHERE if has_failed else None)

    def start_again(self) -> None:
        """Forget what a pass that was stopped has gathered and added up."""
        self.module._get_fsdp_state()._lazy_init()  # the very first pass may have been stopped before it began
        self.module.reset_iter_state()
        for part in self.module.modules():
            groups = part._get_fsdp_state()._fsdp_param_groups if isinstance(part, FSDPModule) else []
            for parameter in (parameter for group in groups for parameter in group.fsdp_params):
                parameter.unsharded_accumulated_grad = None
                if (gathered := getattr(parameter, "_unsharded_param", None)) is not None:
                    gathered.grad = None

    @staticmethod
    def _exchange_flag(has_failed: bool) -> bool:
        return bool(max_over_processes([int(has_failed)])[0])


class AgreedGather(DefaultAllGather):
    """Gathers the weights of a block, if all processes have the memory for it."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__()
        self.agreement = agreement

    @override
    def __call__(self, *tensors: Any, **options: Any) -> Any:
        self.agreement.require_memory()
        return super().__call__(*tensors, **options)


class AgreedScatter(DefaultReduceScatter):
    """Adds up the gradients of a block, if all processes have the memory for it."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__()
        self.agreement = agreement

    @override
    def __call__(self, *tensors: Any, **options: Any) -> Any:
        self.agreement.require_memory()
        return super().__call__(*tensors, **options)
