"""What processes tell one another besides gradients: a few numbers, by way of the CPU, so no device is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import distributed

Number = TypeVar("Number", int, float)


def summed(numbers: Sequence[float]) -> list[float]:
    """Each number's sum over all processes, which all ask for it together."""
    return _reduced(numbers, torch.float64, distributed.ReduceOp.SUM)


def highest(numbers: Sequence[int]) -> list[int]:
    """Each number's highest over all processes, which all ask for it together."""
    return _reduced(numbers, torch.int64, distributed.ReduceOp.MAX)


def _reduced(numbers: Sequence[Number], dtype: torch.dtype, how: Any) -> list[Number]:
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return list(numbers)
    values = torch.tensor(numbers, dtype=dtype)
    distributed.all_reduce(values, how, _cpu_group())
    reduced: list[Number] = values.tolist()
    return reduced


@cache
def _cpu_group() -> Any:
    """All processes, connected by what works between CPUs."""
    return None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")
