"""Which splits a run needs, where they come from, and how a part of the training rows is held out."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING

from taskrecipe.core.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.core.recipe import Recipe
    from taskrecipe.core.spec.spec import Spec

_HOLDOUT = 0x686F6C64
"""Keeps this use of the seed apart from others."""


def evaluated(spec: Spec, recipe: Recipe) -> list[str]:
    """The splits that are measured on, by our names."""
    return spec.evaluate.splits or [name for name in recipe.splits() if name != "train"]


def chosen(spec: Spec, recipe: Recipe, available: Collection[str]) -> dict[str, str]:
    """Our name of each split that is needed, and what it is called in the data; one to be held out is left out."""
    usual = recipe.splits()
    names: dict[str, str] = {}
    for ours in ["train", *evaluated(spec, recipe)]:
        given = spec.data.splits.get(ours)
        candidates = [given] if given else [usual.get(ours, ours), ours]
        there = next((name for name in candidates if name in available), None)
        if there is not None:
            names[ours] = there
        elif ours == "train" or given or not spec.data.holdout:
            raise DataError(_absent(ours, candidates[0], available), split=ours)
    return names


def hold_out(rows: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """The rows that stay and those held out, each in their old order: a function of the seed and their number."""
    import numpy as np

    count = round(len(rows) * share) or 1
    if len(rows) < 2:
        raise DataError("[data].holdout needs two rows at least", split="train")
    order = np.random.default_rng([_HOLDOUT, seed]).permutation(len(rows))
    return rows.select(np.sort(order[count:])), rows.select(np.sort(order[:count]))


def _absent(ours: str, theirs: str, available: Collection[str]) -> str:
    close = get_close_matches(theirs, available, 1)
    example = close[0] if close else next((name for name in available if name != "train"), "…")
    fix = f'say which it is by [data.splits] {ours} = "{example}"'
    if ours != "train":
        fix += ", or set [data].holdout = 0.1 to take a tenth of the training rows"
    return f"there is no split {theirs!r} in the data, which has {', '.join(map(repr, available))}; {fix}"
