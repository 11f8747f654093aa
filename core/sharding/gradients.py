"""The gradients of a sharded module after the backward passes of an update."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from typing_extensions import override

from taskrecipe.training.exchange import max_over_processes
from taskrecipe.training.gradients import Gradients
from taskrecipe.training.sharding import local_tensor


class ShardedGradients(Gradients):
    """The gradients of a sharded module. Every process holds some rows of each."""

    def __init__(self, module: torch.nn.Module, accelerator: Accelerator) -> None:
        super().__init__(module, accelerator)
        self._used: set[int] = set()
        """The parameters that have got a gradient in this process since the last update."""
        for part in module.modules():
            if isinstance(part, FSDPModule):
                sharded = {name: id(parameter) for name, parameter in part.named_parameters()}
                # Before the hook of torch that frees the gathered parameters.
                part.register_forward_hook(partial(self._watch_gathered, sharded, set()), prepend=True)

    @override
    def clip(self, limit: float) -> torch.Tensor:
        self._drop_unused()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        for gradient in gradients:
            if not isinstance(gradient, DTensor):  # a single number, which is not sharded
                gradient.copy_(self.accelerator.reduce(gradient, "mean"))
        # What is not sharded is the same in all processes: it counts once.
        counted = [g for g in gradients if isinstance(g, DTensor) or self.accelerator.is_main_process]
        own = torch.nn.utils.get_total_norm([local_tensor(gradient) for gradient in counted])
        norm: torch.Tensor = self.accelerator.reduce(own.to(self.accelerator.device).square(), "sum").sqrt()
        if limit != float("inf"):
            factor = (limit / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_([local_tensor(gradient) for gradient in gradients], factor)
        return norm

    def _watch_gathered(self, sharded: dict[str, int], watched: set[str], part: torch.nn.Module, *_: Any) -> None:
        """Take note of the gradients of parameters that are gathered for the first time."""
        for name, parameter in part.named_parameters():
            if name not in watched and parameter.requires_grad and not isinstance(parameter, DTensor):
                watched.add(name)
                mark = partial(self._mark_used, sharded[name])
                parameter.register_post_accumulate_grad_hook(mark)  # type: ignore[no-untyped-call]

    def _mark_used(self, parameter: int, *_: Any) -> None:
        self._used.add(parameter)

    def _drop_unused(self) -> None:
        """Let parameters that no process has used have no gradient. They got zeros, so that all exchange the same."""
        flags = max_over_processes([int(id(parameter) in self._used) for parameter in self.parameters])
        self._used.clear()
        for parameter, is_used in zip(self.parameters, flags, strict=True):
            if not is_used:
                parameter.grad = None
            elif parameter.grad is None:  # a single number that only other processes have used
                parameter.grad = torch.zeros_like(parameter)
