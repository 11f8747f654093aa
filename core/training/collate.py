"""Padding rows into a batch, without a Python loop over tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def pad_rows(rows: Sequence[Mapping[str, Any]], fill: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Stack every key of `rows`. Lists of unequal length are padded on the right with the key's `fill`, or 0."""
    return {key: _stack_values([row[key] for row in rows], fill.get(key, 0)) for key in rows[0]}


def _stack_values(values: list[Any], fill: int) -> torch.Tensor:
    import torch

    if not isinstance(values[0], (list, tuple, np.ndarray)):
        return torch.as_tensor(np.asarray(values))
    arrays = [np.asarray(value) for value in values]
    width = max(len(array) for array in arrays)
    if all(len(array) == width for array in arrays):
        return torch.from_numpy(np.stack(arrays))
    padded = np.full((len(arrays), width, *arrays[0].shape[1:]), fill, dtype=np.result_type(*arrays))
    for target, array in zip(padded, arrays, strict=True):
        target[: len(array)] = array
    return torch.from_numpy(padded)
