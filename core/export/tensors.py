"""Tensors of batches and outputs by name, as arrays in a file without pickle that another process reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Arrays = dict[str, np.ndarray[Any, Any]]


def name_tensors(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Return every tensor in nested mappings, lists and tuples, by the keys that lead to it, joined by dots."""
    import torch

    if isinstance(value, torch.Tensor):
        return {name or "output": value}
    if isinstance(value, Mapping):
        pairs = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(str(number), item) for number, item in enumerate(value)]
    else:
        return {}
    found: dict[str, torch.Tensor] = {}
    for key, item in pairs:
        found |= name_tensors(item, f"{name}.{key}" if name else key)
    return found


def as_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Return tensors as arrays; half precision becomes single."""
    import torch

    half = (torch.bfloat16, torch.float16)
    return {
        name: (tensor.float() if tensor.dtype in half else tensor).detach().cpu().numpy()
        for name, tensor in tensors.items()
    }


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays by name into one file."""
    named: dict[str, Any] = dict(arrays)
    np.savez(path, **named)


def read_arrays(path: Path) -> Arrays:
    """Read the arrays that `write_arrays` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def largest_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """Return the largest difference of two sets of outputs, relative to an output's largest value if that is above 1.

    Outputs that are missing, of another shape, or not a number on one side only differ by infinity.
    """
    if not found or not found.keys() <= expected.keys():
        return float("inf")
    return max(_difference(expected[name], found[name]) for name in found)


def _difference(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    if expected.shape != found.shape:
        return float("inf")
    one, other = expected.astype(np.float64), found.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))  # also where both are infinite
    if same.all():
        return 0.0
    gap = np.abs(one[~same] - other[~same]).max()
    finite = np.abs(one[np.isfinite(one)])
    return float(gap / max(1.0, finite.max(initial=0.0))) if np.isfinite(gap) else float("inf")
