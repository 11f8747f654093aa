"""Divides a model among processes: each keeps some rows of every parameter, and gathers a block when it needs it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from taskrecipe.sharding.deferred import DeferredWeights
from taskrecipe.sharding.filling import Places
from taskrecipe.spec.spec import Spec

M_MMAP_THRESHOLD = -3
"""The option of glibc's allocator from which size on memory is mapped, and so returned when it is freed."""
MAPPED_BYTES = 2**20

NUMBER_TYPES = {"bf16": torch.bfloat16}
"""The type that weights are gathered in, for each precision that has one of its own."""


def shard_module(
    module: torch.nn.Module, spec: Spec, accelerator: Accelerator, deferred: DeferredWeights | None = None
) -> None:
    """Keep only this process's rows of every parameter. Call it before the optimizer is made.

    `deferred` fills the weights that the module has not got yet.
    """
    if accelerator.device.type == "cpu":
        _return_freed_memory()
    places = Places.find(module)
    scalars = {parameter for parameter in module.parameters() if not parameter.ndim}  # they have no rows
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()
    _shard_blocks(module, spec, accelerator, scalars)
    for parameter in scalars:
        parameter.data = parameter.data.to(accelerator.device)
    if deferred is not None:
        held = torch.device("cpu") if spec.launch.offload else accelerator.device
        places.fill(module, deferred, held)


def _return_freed_memory() -> None:
    """Let freed weights go back to the system at once. By default glibc keeps them, and memory is soon in pieces."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def _shard_blocks(
    module: torch.nn.Module, spec: Spec, accelerator: Accelerator, scalars: set[torch.nn.Parameter]
) -> None:
    number_type, is_full = NUMBER_TYPES.get(spec.train.precision), spec.launch.shard == "full"
    options: dict[str, Any] = {
        "mesh": init_device_mesh(accelerator.device.type, (accelerator.num_processes,)),
        "mp_policy": MixedPrecisionPolicy(number_type, torch.float32 if number_type else None),
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if spec.launch.offload else OffloadPolicy(),
        "ignored_params": scalars,
    }
    for block in find_blocks(module):
        fully_shard(block, reshard_after_forward=is_full, **options)
    # What is in no block is used at the end of the forward pass and at the start of the backward pass: it stays.
    root = fully_shard(module, reshard_after_forward=None if is_full else False, **options)
    # A batch of one process may use a part of the model that the batch of another one doesn't.
    root.set_reduce_scatter_unused_params(True)


def find_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the parts of a model whose weights are gathered together, inner ones first.

    These are what the model's own class says must not be divided between devices; without such a word, the entries of
    lists of modules. A part that shares weights with the rest of the model is none.
    """
    kinds = {kind for part in module.modules() for kind in getattr(part, "_no_split_modules", None) or ()}
    parts = [part for part in module.modules() if type(part).__name__ in kinds and part is not module]
    if not parts:
        lists = [part for part in module.modules() if isinstance(part, torch.nn.ModuleList) and len(part) > 1]
        parts = [entry for entries in lists for entry in entries]
    with_weights = [part for part in dict.fromkeys(parts) if next(part.parameters(), None) is not None]
    return [part for part in with_weights if not _shares_weights(part, module)][::-1]


def _shares_weights(part: torch.nn.Module, module: torch.nn.Module) -> bool:
    inside, own = set(part.modules()), set(map(id, part.parameters()))
    return any(
        id(parameter) in own
        for other in module.modules()
        if other not in inside
        for parameter in other.parameters(recurse=False)
    )
