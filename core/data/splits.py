"""Which splits a run needs, where they come from, and how a part of the training rows is held out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from taskrecipe.errors import DataError
from taskrecipe.recipe import evaluated_splits
from taskrecipe.system.suggestions import closest

if TYPE_CHECKING:
    import numpy as np

    from taskrecipe.recipe import Recipe

_HOLDOUT = 0x686F6C64
"""Keeps this use of the seed apart from others."""


def choose_splits(recipe: Recipe, available: Collection[str], wanted: Iterable[str]) -> dict[str, str]:
    """Return our name of each wanted split, and its name in the data. A split to be held out is not there."""
    spec = recipe.spec
    names: dict[str, str] = {}
    for ours in wanted:
        given, candidates = spec.data.splits.get(ours), list_candidates(recipe, ours)
        there = next((name for name in candidates if name in available), None)
        if there is not None:
            names[ours] = there
        elif ours == "train" or given or not spec.data.holdout or ours not in evaluated_splits(recipe):
            raise DataError(_describe_missing(ours, candidates[0], available), split=ours)
    return names


def list_candidates(recipe: Recipe, ours: str) -> list[str]:
    """Return the names that a split of ours may have in the data, the first one first."""
    given = recipe.spec.data.splits.get(ours)
    return [given] if given else [recipe.splits().get(ours, ours), ours]


def choose_held_out(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the rows to train on and of the rows held out, in order. Only seed and count matter."""
    import numpy as np

    if count < 2:
        raise DataError("[data].holdout needs at least two rows", split="train")
    held_out = round(count * share) or 1
    order = np.random.default_rng([_HOLDOUT, seed]).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def _describe_missing(ours: str, theirs: str, available: Collection[str]) -> str:
    example = closest(theirs, available) or next((name for name in available if name != "train"), "…")
    fix = f'name it in [data.splits] {ours} = "{example}"'
    if ours != "train":
        fix += ", or set [data].holdout = 0.1 to take a tenth of the training rows"
    return f"there is no split {theirs!r} in the data, which has {', '.join(map(repr, available))}; {fix}"
