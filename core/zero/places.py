"""Where DeepSpeed keeps what this process holds of each parameter.

DeepSpeed copies parameters one after the other into flat memory and divides that among the processes: stages 1 and 2
all parameters of a group together, stage 3 each by itself. So a process may hold the end of one parameter, some whole
ones and the start of another. The optimizer sees only this flat memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from taskrecipe.checkpoints.safetensors_file import Shard


@dataclass(frozen=True)
class Place:
    """The part of a parameter that this process updates: a stretch of the optimizer's flat memory."""

    flat: torch.Tensor
    offset: int
    """Where it begins in the flat memory."""
    start: int
    """How many numbers of the parameter come before it."""
    count: int
    shape: tuple[int, ...]
    """The shape of the whole parameter."""

    def take(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this part of memory that is laid out like the parameters, such as a part of the optimizer's state."""
        return flat.narrow(0, self.offset, self.count)

    def take_shard(self, flat: torch.Tensor) -> Shard:
        """Return this part as a checkpoint holds it."""
        return Shard(self.take(flat), self.start, self.shape)


def find_places(engine: Any) -> dict[str, Place]:
    """Return the place of each trained parameter, by its name."""
    zero = engine.optimizer
    find = _place_alone if is_divided(engine.module) else _place_in_group
    groups = zero.fp16_groups if is_divided(engine.module) else zero.bit16_groups
    return {
        engine.param_names[parameter]: find(zero, number, parameter)
        for number, group in enumerate(groups)
        for parameter in group
    }


def _place_in_group(zero: Any, group: int, parameter: Any) -> Place:
    """Return the place of a parameter that is whole in every process (stages 1 and 2)."""
    flat, mapping, shape = zero.single_partition_of_fp32_groups[group], parameter._hp_mapping, tuple(parameter.shape)
    if mapping is None:  # another process updates all of it
        return Place(flat, 0, 0, 0, shape)
    inside, here = mapping.lp_fragment_address, mapping.hp_fragment_address
    return Place(flat, here.start, inside.start, here.numel, shape)


def _place_alone(zero: Any, group: int, parameter: Any) -> Place:
    """Return the place of a parameter of which every process holds a part (stage 3)."""
    _, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
    held = held_shard(parameter)
    return Place(zero.fp32_partitioned_groups_flat[group], offset, held.start, held.numbers.numel(), held.shape)


def held_shard(parameter: Any, held: torch.Tensor | None = None) -> Shard:
    """Return what this process holds of a parameter that is divided (stage 3), as a checkpoint holds it.

    `held` is other memory with the same layout, such as an average.
    """
    held = parameter.ds_tensor if held is None else held
    size = held.numel()
    start = min(size * torch.distributed.get_rank(), parameter.ds_numel)
    count = min(size, parameter.ds_numel - start)  # the last part is filled up to the size of the others
    return Shard(held.detach().view(-1).narrow(0, 0, count), start, tuple(parameter.ds_shape))


def is_divided(module: torch.nn.Module) -> bool:
    """Whether a module's parameters are divided among the processes (stage 3)."""
    return any(hasattr(parameter, "ds_tensor") for parameter in module.parameters())
