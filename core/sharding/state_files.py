"""What each process writes of a sharded state into a checkpoint, and what it reads of one.

A checkpoint says of every tensor which part is where, so it can be read by another number of processes, by another
engine, or by one process that holds everything; and what one process wrote can be read by several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import distributed
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from typing_extensions import override

from taskrecipe.checkpoints.safetensors_file import Shard, Tensors
from taskrecipe.checkpoints.stored_tensors import StoredTensors, part_name
from taskrecipe.training.sharding import local_tensor

PARAMETERS = "parameters/"
"""What names of tensors in an optimizer's state begin with; the name of the parameter follows."""


def split_files(files: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Return what this process writes of some files, under the names of its parts.

    These are its parts of sharded tensors. What every process holds is written by the first one.
    """
    part, parts = distributed.get_rank(), distributed.get_world_size()
    return {part_name(file, part, parts): _own_tensors(tensors, part == 0) for file, tensors in files.items()}


def _own_tensors(tensors: Tensors, is_first: bool) -> Tensors:
    own: dict[str, torch.Tensor | Shard] = {}
    shards: dict[int, Shard] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            local = tensor.to_local()
            # A weight with two names is one shard, so that it is written once. Its storage is there even without rows.
            own[name] = shards.setdefault(local.untyped_storage()._cdata, _make_shard(tensor, local))
        elif is_first or isinstance(tensor, Shard):
            own[name] = tensor
    return own


def _make_shard(tensor: DTensor, local: torch.Tensor) -> Shard:
    return Shard(local, row_range(tensor)[0] * math.prod(tensor.shape[1:]), tuple(tensor.shape))


def row_range(tensor: DTensor) -> tuple[int, int]:
    """Return the first row that this process holds of a tensor, and the one after the last."""
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return offset[0], offset[0] + shape[0]


@torch.no_grad()
def load_parts(stored: StoredTensors, tensors: Tensors) -> None:
    """Fill tensors with what is stored under their names. Of a sharded one only the part of this process is read."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Shard):
            tensor.numbers.copy_(read_shard(stored, name, tensor))
        elif isinstance(tensor, DTensor):
            local_tensor(tensor).copy_(stored.read_rows(name, *row_range(tensor)))
        else:
            tensor.copy_(stored.read(name))


def read_shard(stored: StoredTensors, name: str, shard: Shard) -> torch.Tensor:
    """Return what is stored of a tensor at the place of a shard."""
    return stored.read_stretch(name, shard.start, shard.start + shard.numbers.numel())


class OptimizerTensors(Mapping[str, torch.Tensor]):
    """The tensors of a stored optimizer state: those that are shaped like a sharded parameter are sharded like it."""

    def __init__(self, stored: StoredTensors, parameters: Mapping[str, torch.Tensor]) -> None:
        self.stored, self.parameters = stored, parameters

    @override
    def __getitem__(self, name: str) -> torch.Tensor:
        parameter = self.parameters.get(name.removeprefix(PARAMETERS).rpartition("/")[0])
        shape = self.stored.find(name).shape
        if not isinstance(parameter, DTensor) or shape != tuple(parameter.shape):
            return self.stored.read(name)
        rows = self.stored.read_rows(name, *row_range(parameter)).to(parameter.device)
        return DTensor.from_local(
            rows,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.stored.names)

    @override
    def __len__(self) -> int:
        return len(self.stored.names)
