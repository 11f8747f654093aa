"""The masks of packs: each document in a row gets those that it gets as a row of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from taskrecipe.training.dropout_hash import mix_, mix_indexes, take_halves


class Documents(NamedTuple):
    """What each token of a batch of packs belongs to."""

    keys: torch.Tensor
    """The int32 key of each token's document: rows x length."""
    positions: torch.Tensor
    """The position of each token in its document: rows x length."""


def hash_packed_bits(documents: Documents, site: int, shape: Sequence[int]) -> torch.Tensor | None:
    """Return 16 random bits for each element of (rows, length, channels) or (rows, heads, length, length).

    None for any other shape.
    """
    rows, length = documents.keys.shape
    table = mix_indexes(length, documents.keys.device)
    # As `_hash_rows` of one entry a row.
    keys = mix_(documents.keys + (table[:1] + site))
    if len(shape) == 3 and tuple(shape[:2]) == (rows, length):
        return _hash_positions(keys, table[documents.positions], shape[2])
    if len(shape) == 4 and (shape[0], shape[2], shape[3]) == (rows, length, length):
        return _hash_attention(keys, table, documents.positions, shape[1])
    return None


def _hash_positions(keys: torch.Tensor, places: torch.Tensor, channels: int) -> torch.Tensor:
    x = mix_(keys + places)
    x = mix_(x.unsqueeze(-1) + mix_indexes((channels + 1) // 2, x.device))
    return x.view(torch.int16)[..., :channels]


def _hash_attention(keys: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, heads: int) -> torch.Tensor:
    x = mix_(keys.unsqueeze(1) + mix_indexes(heads, keys.device).unsqueeze(-1))
    x = mix_(x + table[positions].unsqueeze(1))
    x = mix_(x.unsqueeze(-1) + table[positions // 2][:, None, None, :])
    # Two neighbors in a document share a hash; which half is whose follows from the position there.
    return take_halves(x, positions[:, None, None, :].to(torch.int32))
