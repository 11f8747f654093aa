"""Filling a sharded module, whose weights were deferred, with the rows that this process holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.distributed.tensor import DTensor

from taskrecipe.sharding.deferred import DeferredWeights
from taskrecipe.sharding.state_files import row_range
from taskrecipe.training.sharding import local_tensor

IN_TURN = "HF_DEACTIVATE_ASYNC_LOAD"
"""The environment variable that makes transformers read weights in this thread, where what happens is recorded."""


@contextmanager
def record_weights(deferred: DeferredWeights) -> Iterator[None]:
    """Make a model whose weights are deferred."""
    former = os.environ.get(IN_TURN)
    os.environ[IN_TURN] = "1"
    try:
        with deferred:
            yield
    finally:
        os.environ.pop(IN_TURN)
        if former is not None:
            os.environ[IN_TURN] = former


@dataclass
class Places:
    """Where the deferred tensors of a module are: found before it is sharded, filled afterwards."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    parameters: dict[int, str] = field(default_factory=dict)
    """The name of a parameter by its number among the tensors."""
    owners: dict[int, tuple[torch.nn.Module, str]] = field(default_factory=dict)
    """The same for buffers, and for tensors that are plain attributes: their module, and their name there."""

    @classmethod
    def find(cls, module: torch.nn.Module) -> Places:
        """Find the tensors of a module that have no memory."""
        found = cls()
        for name, parameter in module.named_parameters():
            if parameter.is_meta:
                found.parameters[len(found.tensors)] = name
                found.tensors.append(parameter)
        for part in module.modules():
            for name, value in [*part._buffers.items(), *vars(part).items()]:
                if isinstance(value, torch.Tensor) and value.is_meta:
                    found.owners[len(found.tensors)] = part, name
                    found.tensors.append(value)
        return found

    def fill(self, module: torch.nn.Module, deferred: DeferredWeights, device: torch.device) -> None:
        """Fill the module, one tensor at a time, with the rows that this process holds."""
        if not self.tensors:
            return
        module._apply(partial(_allocate, device=device))  # type: ignore[no-untyped-call]
        deferred.fill(self.tensors, partial(self._take, module, device))

    @torch.no_grad()
    def _take(self, module: torch.nn.Module, device: torch.device, place: int, value: torch.Tensor) -> None:
        if place in self.owners:
            part, name = self.owners[place]
            setattr(part, name, value.to(device, copy=True))
            return
        parameter: torch.Tensor = module.get_parameter(self.parameters[place])
        own = value[slice(*row_range(parameter))] if isinstance(parameter, DTensor) else value
        local_tensor(parameter).copy_(own)


def _allocate(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Give memory to a tensor that has none."""
    return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor
