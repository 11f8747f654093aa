"""`[sweep]`, a search for the best values of some keys, and `[expect]`, what a run must come to.

Annotations are no strings in this module: see `taskrecipe.spec.spec`.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from taskrecipe.spec.table import LARGEST, Count, Table, Text

Scalar = bool | int | float | str
Choice = Scalar | list[Scalar]
"""One of several values that a key may take in a sweep."""


class Range(Table):
    """The values of a number between two ends, both included."""

    low: float = Field(ge=-1e300, le=1e300, description="The smallest value.")
    high: float = Field(ge=-1e300, le=1e300, description="The largest value.")
    log: bool = Field(default=False, description="Whether the logarithm is drawn evenly, as for a learning rate.")
    whole: bool = Field(default=False, alias="int", description="Whether only integers are drawn.")
    step: Annotated[float, Field(gt=0.0, le=1e300)] | None = Field(
        default=None, description="Distance between two values; without it any value between the ends is drawn."
    )


def _flatten_keys(space: Any) -> Any:
    """Accept a dotted key without quotes, which TOML reads as tables within tables."""
    if not isinstance(space, dict):
        return space
    flat: dict[str, Any] = {}
    for key, value in space.items():
        if isinstance(value, dict) and value and all(isinstance(inner, dict | list) for inner in value.values()):
            flat |= {f"{key}.{rest}": inner for rest, inner in _flatten_keys(value).items()}
        else:
            flat[key] = value
    return flat


class Sweep(Table):
    """`[sweep]`: which values to try, and how they are chosen. `recipe sweep` searches for the best ones."""

    space: Annotated[
        dict[Text, Range | Annotated[list[Choice], Field(min_length=1, max_length=1000)]],
        BeforeValidator(_flatten_keys),
    ] = Field(
        default={},
        description="The keys to search over, each in quotes, with a range, { low = 1e-5, high = 1e-3, log = true }, "
        "or a list of values, [16, 32].",
    )
    trials: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="How many combinations of values to try; grid: all of them by default."
    )
    sampler: Literal["grid", "random", "tpe", "cmaes"] = Field(
        default="tpe",
        description="How values are chosen: grid (every combination), random, tpe (learns which regions are good), "
        "cmaes (follows a slope; for numbers only).",
    )
    pruner: Literal["none", "median", "halving"] = Field(
        default="none",
        description="Which trials end early: none; median (worse than half of the earlier ones at the same time); "
        "halving (all trials train a part, the best of them go on by resuming, and so on).",
    )
    parallel: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1, description="Trials at a time on this machine. Several machines may work in one folder."
    )
    ahead: Count | None = Field(
        default=None,
        description="Trials at a time on all machines together, by default parallel. A suggestion waits for the "
        "results of all trials that many before it, so that the same values are tried whichever trial ends first.",
    )
    seeds: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="Runs of each trial, with seeds that follow [seed]; their mean decides."
    )
    reduction: Annotated[int, Field(ge=2, le=100)] = Field(
        default=3, description="halving: one of this many trials goes on at each rung."
    )
    rungs: Annotated[int, Field(ge=2, le=10)] = Field(
        default=3,
        description="halving: parts that training is cut into; each is `reduction` times as long as the one before.",
    )
    max_failures: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        default=5, description="Trials that may fail, e.g. for NaN or lack of memory, before the sweep ends."
    )


class Bounds(Table):
    """Between which values a metric must be."""

    at_least: Annotated[float, Field(ge=-1e300, le=1e300)] | None = Field(default=None, description="The lowest value.")
    at_most: Annotated[float, Field(ge=-1e300, le=1e300)] | None = Field(default=None, description="The highest value.")


Expectation = Bounds | Count | Text
"""Bounds of a metric; the number of `updates`; the `fingerprint` of the last checkpoint."""
