"""Randomness as a function of the seed and of its purpose, never of what was drawn before."""

from __future__ import annotations

import random as python_random
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from typing_extensions import override


class Purpose(IntEnum):
    """What random numbers are for. Two purposes never share a stream."""

    ORDER = 1
    DRAW = 2
    EXAMPLE = 3
    EVALUATION = 4
    UPDATE = 5
    MODEL = 6


class _Key(ISeedSequence):
    """A key for numpy's generators. Given as `key`, they would first ask the system for bits that they don't use."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = np.array(numbers, dtype=np.uint64)

    @override
    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return self.numbers


def make_generator(purpose: Purpose, seed: int, first: int = 0, second: int = 0) -> np.random.Generator:
    """Make a generator for a purpose, a seed and a pair of numbers, such as an epoch and a row.

    Philox is a block cipher of its key: keys that differ by one give unrelated streams, and making one is cheap.
    """
    return np.random.Generator(_make_bits(purpose, seed, first, second))


def _make_bits(purpose: Purpose, seed: int, first: int, second: int) -> np.random.Philox:
    key: Any = _Key((seed << 32) | (first & 0xFFFFFFFF), (int(purpose) << 56) | second)
    return np.random.Philox(key)


def seed_everything(device: torch.device, purpose: Purpose, seed: int, first: int = 0, second: int = 0) -> None:
    """Seed every global generator for this moment of the run. Dropout draws from torch's."""
    value = int(_make_bits(purpose, seed, first, second).random_raw()) >> 1
    python_random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    # torch.manual_seed would also queue a call, with a stack trace, for every absent kind of device.
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        _device_module(device).manual_seed(value)


def generator_states(device: torch.device) -> list[bytes]:
    """Return the states of the generators that a model on `device` draws from. They change with every draw."""
    states = [torch.default_generator.get_state()]
    if device.type != "cpu":
        states.append(_device_module(device).get_rng_state())
    return [state.numpy().tobytes() for state in states]


def restore_generators(device: torch.device, states: list[bytes]) -> None:
    """Set the generators to what `generator_states` returned."""
    own, *others = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states)
    torch.default_generator.set_state(own)
    for state in others:
        _device_module(device).set_rng_state(state)


def _device_module(device: torch.device) -> Any:
    return getattr(torch, device.type)
