"""A divided module with whole weights, to export it: they are gathered one by one into a file and mapped there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from taskrecipe.checkpoints.safetensors_file import file_order, write_one_by_one
from taskrecipe.system import atomic_files
from taskrecipe.training.sharding import original_class


@contextmanager
def gather_weights(module: torch.nn.Module, names: Collection[str], folder: Path) -> Iterator[None]:
    """Give a module whole weights for a while, those of some names. They are in a file in `folder` for as long.

    All other processes must call `help_gather` meanwhile. None holds more than one weight in memory.
    """
    sharded = _find_sharded(module, names)
    path = folder / ".whole.safetensors"
    with atomic_files.remove_on_failure(path):
        write_one_by_one(path, _describe(sharded), lambda name: _gather(sharded[name]))
        with _plain_classes(module), _mapped_parameters(module, sharded, path):
            yield
        atomic_files.remove(path)


def help_gather(module: torch.nn.Module, names: Collection[str]) -> None:
    """Send the rows of this process to the one that gathers whole weights."""
    sharded = _find_sharded(module, names)
    for name in file_order(_describe(sharded)):
        _gather(sharded[name])


def _find_sharded(module: torch.nn.Module, names: Collection[str]) -> dict[str, torch.nn.Parameter]:
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if name in names and (isinstance(parameter, DTensor) or hasattr(parameter, "ds_tensor") or _is_flat(parameter))
    }


def _is_flat(parameter: torch.nn.Parameter) -> bool:
    """Whether a parameter is whole, but a part of DeepSpeed's flat memory: saved as it is, it would seem to be tied."""
    return hasattr(parameter, "_hp_mapping")


def _describe(sharded: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Return tensors without memory that have the types and shapes of whole weights."""
    return {
        name: torch.empty(getattr(parameter, "ds_shape", parameter.shape), dtype=parameter.dtype, device="meta")
        for name, parameter in sharded.items()
    }


def _gather(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return the whole of a weight. All processes must call this together."""
    if isinstance(parameter, DTensor):
        whole: torch.Tensor = parameter.full_tensor()
        return whole
    if _is_flat(parameter):
        return parameter.detach()
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([parameter]):
        return parameter.detach().cpu().clone()


@contextmanager
def _plain_classes(module: torch.nn.Module) -> Iterator[None]:
    """Let the parts of a module have their own classes again, whose names are exported with them."""
    changed = [(part, type(part)) for part in module.modules() if isinstance(part, FSDPModule)]
    for part, _ in changed:
        part.__class__ = original_class(part)
    try:
        yield
    finally:
        for part, kind in changed:
            part.__class__ = kind


@contextmanager
def _mapped_parameters(module: torch.nn.Module, sharded: dict[str, torch.nn.Parameter], path: Path) -> Iterator[None]:
    """Put the tensors of a file in the places of parameters, under each of their names."""
    places = [
        (part, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None
    ]
    with safe_open(path, framework="pt") as file:
        whole = {
            id(parameter): torch.nn.Parameter(file.get_tensor(name), requires_grad=parameter.requires_grad)
            for name, parameter in sharded.items()
        }
        for part, name, parameter in places:
            part._parameters[name] = whole.get(id(parameter), parameter)
        try:
            yield
        finally:
            for part, name, parameter in places:
                part._parameters[name] = parameter
