"""Exchanging values between processes. They go through the CPU, so no device is waited for, and are never pickled.

All processes must call these functions together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed

from taskrecipe.checkpoints.nested_state import keepable, pack_state, unpack_state

Number = TypeVar("Number", int, float)


def has_peers() -> bool:
    """Whether this process is one of several."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_main() -> bool:
    """Whether this process is the main one; true for a process that is alone."""
    return not has_peers() or distributed.get_rank() == 0


def sum_over_processes(numbers: Sequence[float]) -> list[float]:
    """Return the sum of each number over all processes."""
    return _reduce(numbers, torch.float64, distributed.ReduceOp.SUM)


def begin_sum(numbers: Sequence[float]) -> Callable[[], list[float]]:
    """Begin to sum each number over all processes, and return what waits for the sums. Other work may go on."""
    if not has_peers():
        return lambda: list(numbers)
    values = torch.tensor(numbers, dtype=torch.float64)
    work = distributed.all_reduce(values, distributed.ReduceOp.SUM, _cpu_group(), async_op=True)

    def finish() -> list[float]:
        work.wait()
        sums: list[float] = values.tolist()
        return sums

    return finish


def max_over_processes(numbers: Sequence[int]) -> list[int]:
    """Return the maximum of each number over all processes."""
    return _reduce(numbers, torch.int64, distributed.ReduceOp.MAX)


def broadcast_json(value: Any) -> Any:
    """Return the main process's value, which is made of JSON values, in every process."""
    if not has_peers():
        return value
    content = json.dumps(value).encode() if distributed.get_rank() == 0 else b""
    size = torch.tensor([len(content)], dtype=torch.int64)
    distributed.broadcast(size, 0, _cpu_group())
    data = _as_tensor(content) if content else torch.zeros(int(size), dtype=torch.uint8)
    distributed.broadcast(data, 0, _cpu_group())
    return json.loads(data.numpy().tobytes())


def gather_values(value: Any, group: Any = None) -> list[Any]:
    """Return the value of every process, in their order: any nesting of plain values, arrays and tensors.

    `group` is a connection between all processes that works on CPUs, other than the usual one.
    """
    if not has_peers():
        return [value]
    content, group = _encode(value), group or _cpu_group()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, torch.tensor([len(content)]), group)
    largest = int(max(sizes))
    mine = torch.zeros(largest, dtype=torch.uint8)
    mine[: len(content)] = _as_tensor(content)
    gathered = [torch.zeros_like(mine) for _ in sizes]
    distributed.all_gather(gathered, mine, group)
    return [_decode(data[: int(size)].numpy().tobytes()) for data, size in zip(gathered, sizes, strict=True)]


def wait_for_everyone() -> None:
    """Return once every process has called this."""
    max_over_processes([0])


def _reduce(numbers: Sequence[Number], dtype: torch.dtype, how: Any) -> list[Number]:
    if not has_peers():
        return list(numbers)
    values = torch.tensor(numbers, dtype=dtype)
    distributed.all_reduce(values, how, _cpu_group())
    reduced: list[Number] = values.tolist()
    return reduced


@cache
def _cpu_group() -> Any:
    """The group of all processes on a backend that works between CPUs."""
    return None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _encode(value: Any) -> bytes:
    """Write a value as a safetensors file whose metadata holds the structure around the tensors."""
    from safetensors.torch import save

    tensors, skeleton = pack_state(_mark_arrays(value))
    # Cloned, since the library refuses tensors that share memory, such as the rows of one matrix.
    numbered = {str(number): tensor.detach().contiguous().clone() for number, tensor in enumerate(tensors.values())}
    names = dict(zip(tensors, numbered, strict=True))
    return save(numbered, {"skeleton": json.dumps(skeleton), "names": json.dumps(names)})


def _decode(content: bytes) -> Any:
    from safetensors.torch import load

    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    numbered = load(content)
    tensors = {name: numbered[number] for name, number in json.loads(header["names"]).items()}
    return _restore_arrays(unpack_state(tensors, json.loads(header["skeleton"])))


@keepable
class _Array:
    """A numpy array or bytes, as a tensor of bytes."""

    def __init__(self, content: bytes, dtype: str | None = None, shape: Sequence[int] = ()) -> None:
        self.data = _as_tensor(content) if content else torch.zeros(0, dtype=torch.uint8)
        self.dtype, self.shape = dtype, list(shape)

    def restore(self) -> Any:
        """Return what it was made of. Without a dtype these are bytes."""
        content = self.data.numpy().tobytes()
        if self.dtype is None:
            return content
        return np.frombuffer(bytearray(content), np.dtype(self.dtype)).reshape(self.shape)


def _mark_arrays(value: Any) -> Any:
    """Replace arrays and bytes, which checkpoints don't hold, by objects that become tensors."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"processes can't exchange an array of {value.dtype}")
        return _Array(value.tobytes(), value.dtype.str, value.shape)
    if isinstance(value, bytes):
        return _Array(value)
    return _map_items(_mark_arrays, value)


def _restore_arrays(value: Any) -> Any:
    return value.restore() if isinstance(value, _Array) else _map_items(_restore_arrays, value)


def _map_items(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: function(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(function(item) for item in value)
    return value
