"""Sharding: each process holds only some rows of every weight, of its gradient and of its optimizer state.

torch's `fully_shard` does it. The model is divided into blocks, such as the layers of a transformer. The weights of a
block are gathered from all processes just before its forward pass or its backward pass needs them, and its gradients
are summed there where their rows are kept. With `[launch].shard = "full"` gathered weights are freed after the forward
pass and gathered again for the backward pass; with "gradients" they stay in between, which needs more memory and less
communication.

A parameter is a `DTensor` between these passes: its shape is that of the whole weight, its memory holds only the rows
of this process. What does the work is in `taskrecipe.sharding`.

With `[launch].engine = "deepspeed"`, DeepSpeed's ZeRO does it instead. There a parameter is empty between the passes,
and `ds_tensor` is the flat part that this process holds. What does that work is in `taskrecipe.zero`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import distributed

from taskrecipe.spec.spec import Spec
from taskrecipe.vision.batch_norm import find_batch_norms


def wants_shards(spec: Spec, accelerator: Accelerator) -> bool:
    """Whether the state of training is to be divided among processes. One process alone holds everything anyway."""
    return spec.launch.shard != "none" and accelerator.num_processes > 1


def wants_engine(spec: Spec, accelerator: Accelerator) -> bool:
    """Whether DeepSpeed is to divide it."""
    return spec.launch.engine == "deepspeed" and wants_shards(spec, accelerator)


def is_sharded(part: Any) -> bool:
    """Whether a module, or a tensor, is divided among processes."""
    # Not imported here: it takes long, and without it nothing is sharded.
    fsdp, tensor = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    return fsdp is not None and tensor is not None and isinstance(part, (fsdp.FSDPModule, tensor.DTensor))


def original_class(module: torch.nn.Module) -> type:
    """Return the class that a module had before it was sharded."""
    kind = type(module)
    return kind.__mro__[2] if is_sharded(module) else kind


def is_engine(model: Any) -> bool:
    """Whether a model is wrapped by DeepSpeed's engine."""
    deepspeed = sys.modules.get("deepspeed")
    return deepspeed is not None and isinstance(model, deepspeed.DeepSpeedEngine)


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside the wrapper that trains it in several processes; without one, the model itself."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    is_wrapper = isinstance(model, wrappers) or is_engine(model)
    inner: torch.nn.Module = cast("Any", model).module if is_wrapper else model
    return inner


def set_mode(model: torch.nn.Module, *, training: bool) -> None:
    """Switch a model to training or to evaluation."""
    model.train(training)
    model.training = training  # DeepSpeed's engine only tells its module, and recipes look at the model


def held_tensor(parameter: Any) -> torch.Tensor:
    """Return the memory of a parameter: the parameter itself, or the flat part of it that DeepSpeed leaves here."""
    held: torch.Tensor = getattr(parameter, "ds_tensor", parameter)
    return held


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process holds: all of it, unless it is sharded."""
    held = held_tensor(tensor)
    local: torch.Tensor = cast("Any", held).to_local() if is_sharded(held) else held
    return local


def reshard(module: torch.nn.Module) -> None:
    """Free what is gathered. Do this before weights are changed outside of training: they are gathered again then."""
    for part in module.modules():
        if is_sharded(part):
            part.reshard()  # type: ignore[operator]
    divided: list[Any] = [parameter for parameter in module.parameters() if hasattr(parameter, "ds_tensor")]
    for parameter in divided:
        parameter.partition()


def share_buffers(model: torch.nn.Module) -> None:
    """Give every process the main one's statistics of batch norms. The wrapper of replicas does this by itself."""
    if not (is_sharded(model) or is_engine(model)):
        return
    for norm in find_batch_norms(model):
        for buffer in norm.buffers():
            distributed.broadcast(buffer, 0)


@contextmanager
def gather_root(module: torch.nn.Module) -> Iterator[None]:
    """Gather the weights that are in no block while parts of a module are called by themselves, to generate text."""
    if not is_sharded(module):
        yield
        return
    root: Any = module
    root._get_fsdp_state()._lazy_init()  # else the part that is called first would be taken for the whole
    root.unshard()
    try:
        yield
    finally:
        root.reshard()


def run_backward(accelerator: Accelerator, model: torch.nn.Module, loss: torch.Tensor) -> None:
    """Add the gradients of a loss to those before."""
    if is_engine(model):
        engine: Any = model
        engine.backward(loss, scale_wrt_gas=False)
        return
    # Accelerate's own function would divide the loss by a number of micro-batches, which is 1 for it.
    scaled = loss if accelerator.scaler is None else accelerator.scaler.scale(loss)
    scaled.backward()


@contextmanager
def delay_exchange(accelerator: Accelerator, model: torch.nn.Module) -> Iterator[None]:
    """Add up the gradients of a micro-batch without those of other processes: they are exchanged with a later one.

    DeepSpeed exchanges them at once from stage 2 on, since each process keeps only a part, and adds the parts up.
    """
    if is_engine(model):
        engine: Any = model
        engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            engine.set_gradient_accumulation_boundary(True)
        return
    if not is_sharded(model):
        with accelerator.no_sync(model):
            yield
        return
    module: Any = model
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


@contextmanager
def whole_weights(module: torch.nn.Module, names: Collection[str], folder: Path) -> Iterator[None]:
    """Give a module whole weights for a while, those of some names; `folder` holds them for as long.

    All other processes must call `help_gather` meanwhile. A module that no engine holds has whole weights already.
    """
    if not _has_other_memory(module):
        yield
        return
    from taskrecipe.sharding.whole_weights import gather_weights

    with gather_weights(module, names, folder):
        yield


def help_gather(module: torch.nn.Module, names: Collection[str]) -> None:
    """Take part while another process calls `whole_weights`."""
    if _has_other_memory(module):
        from taskrecipe.sharding import whole_weights

        whole_weights.help_gather(module, names)


def is_divided(module: torch.nn.Module) -> bool:
    """Whether the weights of a module are divided among the processes, so that all of them must compute together."""
    return is_sharded(module) or any(hasattr(parameter, "ds_tensor") for parameter in module.parameters())


def _has_other_memory(module: torch.nn.Module) -> bool:
    """Whether parameters are not each a whole piece of memory of its own: divided, or parts of DeepSpeed's flat one."""
    return is_divided(module) or any(hasattr(parameter, "_hp_mapping") for parameter in module.parameters())
