"""Freezes batch norms: with statistics of each micro-batch, an update would depend on how it is split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def freeze_batch_norm(model: torch.nn.Module) -> None:
    """Make batch norms use their stored statistics, in training too."""
    for module in find_batch_norms(model):
        module.eval()
        module.train = partial(_stays, module)  # type: ignore[method-assign]


def find_batch_norms(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Return the batch norms of a model."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return (module for module in model.modules() if isinstance(module, _BatchNorm))


def _stays(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:  # noqa: ARG001 - as `train` is called
    return module
