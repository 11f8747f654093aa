"""Randomness as a function: of the seed and of what it is for, never of what was drawn before."""

from __future__ import annotations

import random as python_random
from enum import IntEnum
from typing import Any

import numpy as np
import torch


class Purpose(IntEnum):
    """What a draw is for; two purposes never share a stream."""

    ORDER = 1
    DRAW = 2
    EXAMPLE = 3
    EVALUATION = 4
    UPDATE = 5
    MODEL = 6


def generator(purpose: Purpose, seed: int, first: int = 0, second: int = 0) -> np.random.Generator:
    """A generator of its own for each purpose, seed and pair of numbers (an epoch and a row, say).

    Philox is a block cipher of its key: neighbouring keys give unrelated streams, and making one is cheap.
    """
    key = [(seed << 32) | (first & 0xFFFFFFFF), (int(purpose) << 56) | second]
    return np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))


def seed_everything(device: torch.device, purpose: Purpose, seed: int, first: int = 0, second: int = 0) -> None:
    """Put every global generator (dropout draws from torch's) where this moment of the run wants it."""
    value = int(generator(purpose, seed, first, second).integers(2**63))
    python_random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    # torch.manual_seed would also queue a call, with a stack trace, for every absent kind of device.
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        _device_module(device).manual_seed(value)


def _device_module(device: torch.device) -> Any:
    return getattr(torch, device.type)
