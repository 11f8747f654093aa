"""Comparing nested values exactly: types, strides and every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        same_kind = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same_kind and (one.numel() == 0 or one.stride() == other.stride()) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
