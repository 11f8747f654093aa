"""Random numbers as a hash of their place: of a row's key, and of the index in each further dimension.

The mixing function is lowbias32 (Chris Wellons, hash-prospector): two multiplications and three xor-shifts on 32
bits. It is applied once for each dimension, so that an index is never added to another before it is mixed. Only the
last dimension has the full size, and there one hash serves two neighbors, 16 bits each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

STEPS = 2**16
"""Dropout rates are rounded to multiples of 1 / STEPS: an element has 16 random bits."""

_MASK = 2**64 - 1
_TABLES: dict[torch.device, torch.Tensor] = {}
"""The mixed indexes of each device, as many as were needed so far."""


def mix_(x: torch.Tensor) -> torch.Tensor:
    """Replace int32 numbers by their lowbias32 hash, in place. torch shifts the sign in, so it is masked out."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(0x846CA68B - 2**32)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def mix_indexes(count: int, device: torch.device) -> torch.Tensor:
    """Return the hashes of 1 to `count`."""
    table = _TABLES.get(device)
    if table is None or len(table) < count:
        table = extend_table(2 * count, device)
    return table[:count]


# Not compiled: torch 2.13 compiles arithmetic on `arange` into 64 bits, where these numbers overflow 32.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def extend_table(count: int, device: torch.device) -> torch.Tensor:
    """Make the table of a device that long, and return it."""
    table = _TABLES[device] = mix_(torch.arange(1, count + 1, dtype=torch.int32, device=device))
    return table


def row_keys(seed: int, update: int, rows: Any) -> Any:
    """Return a 32-bit key for each row number, whatever the shape of `rows`: splitmix64 of seed, update and row."""
    start = np.uint64(_splitmix(_splitmix(seed) ^ update))
    with np.errstate(over="ignore"):
        z = (np.asarray(rows, dtype=np.uint64) ^ start) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z >> np.uint64(32)).astype(np.uint32).view(np.int32)


def site_key(kind: int, number: int) -> int:
    """Return the int32 constant of the `number`-th draw of a kind within a forward pass."""
    return (number * 0x9E3779B1 + kind * 0x85EBCA6B + 2**31) % 2**32 - 2**31


def hash_places(keys: torch.Tensor, site: int, shape: Sequence[int]) -> torch.Tensor:
    """Return an int32 hash for each element of `shape`, whose first dimension holds one or more entries of each row."""
    x = _hash_rows(keys, site, shape[0])
    for size in shape[1:]:
        x = mix_(x.unsqueeze(-1) + mix_indexes(size, x.device))
    return x


def hash_bits(keys: torch.Tensor, site: int, shape: Sequence[int]) -> torch.Tensor:
    """Return 16 random bits, as a number from -2^15 on, for each element of `shape`."""
    if len(shape) == 1:
        return (_hash_rows(keys, site, shape[0]) >> 16).to(torch.int16)
    *front, last = shape
    x = hash_places(keys, site, [*front, (last + 1) // 2])
    return x.view(torch.int16)[..., :last]


def take_halves(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return the lower 16 bits of hashes whose number is even, and the upper 16 of the others."""
    return (x << (1 - numbers % 2) * 16) >> 16


def make_noise(bits: torch.Tensor, rate: float, dtype: torch.dtype) -> torch.Tensor:
    """Return what dropout multiplies by: 0 for a share `rate` of the elements, and what keeps the mean for others.

    `bits` are overwritten.
    """
    dropped = round(rate * STEPS)
    if dropped == STEPS:
        return torch.zeros(bits.shape, dtype=dtype, device=bits.device)
    # In place it is ten times as fast: the result then has the type of `bits`, which needs no conversion to bool.
    compare = bits.ge if torch.compiler.is_compiling() else bits.ge_
    return compare(dropped - STEPS // 2).to(dtype).mul_(STEPS / (STEPS - dropped))


def make_uniform(places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers between 0 and 1, with 24 bits each."""
    return (places >> 8).bitwise_and_(0xFFFFFF).to(dtype).mul_(2.0**-24)


def _hash_rows(keys: torch.Tensor, site: int, entries: int) -> torch.Tensor:
    """Return a hash for each entry of each row; keys have one dimension, entries of a row are neighbors."""
    each = entries // len(keys)
    return mix_((keys.unsqueeze(-1) + mix_indexes(each, keys.device)).add_(site)).flatten()


def _splitmix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
