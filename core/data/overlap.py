"""Rows that are both trained on and evaluated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from taskrecipe.data.facts import recall_fact
from taskrecipe.data.file_digest import SMALL_BYTES
from taskrecipe.data.row_digest import fingerprint
from taskrecipe.data.row_hash import Hashes, hash_rows

if TYPE_CHECKING:
    from taskrecipe.recipe import Splits


def warn_of_overlap(splits: Splits, columns: Sequence[str]) -> None:
    """Warn if rows of another split are also in `train`: rows that have the same values in all of `columns`."""

    @cache
    def trained() -> Hashes:
        return np.unique(hash_rows(splits["train"], columns))

    def count_overlap(split: str) -> int:
        return int(np.isin(hash_rows(splits[split], columns), trained()).sum())

    for split, rows in splits.items():
        if split == "train":
            continue
        if splits["train"].data.nbytes + rows.data.nbytes < SMALL_BYTES:
            count = count_overlap(split)
        else:
            about = ["overlap", fingerprint(splits["train"]), fingerprint(rows), list(columns)]
            count = recall_fact(about, lambda split=split: count_overlap(split))  # type: ignore[misc]
        if count:
            warnings.warn(
                f"split {split!r}: {count} of {len(rows)} rows are also in 'train': "
                "metrics on this split will be too optimistic",
                stacklevel=2,
            )
