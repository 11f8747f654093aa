"""The space of a sweep: the keys that it searches over, and the values that each may take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import floor, prod
from typing import TYPE_CHECKING, Any

from taskrecipe.spec.key_path import KeyPath
from taskrecipe.spec.sweep import Choice, Range, Sweep

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Values = dict[str, Any]
"""The value of each key of the space: one point of it."""


@dataclass(frozen=True)
class Dimension:
    """One key of the space."""

    key: str
    given: Range | list[Choice]

    @property
    def path(self) -> KeyPath:
        """The key as a path; a part that is a number is a position in a list."""
        return tuple(int(part) if part.isdigit() else part for part in self.key.split("."))

    def ends(self) -> list[tuple[str | int, Any]]:
        """Return the two ends of a range or all choices, each with its place in the file."""
        if isinstance(self.given, list):
            return list(enumerate(self.given))
        return [("low", self._number(self.given.low)), ("high", self._number(self.given.high))]

    def is_listed(self) -> bool:
        """Whether all values can be listed, as a grid needs it."""
        return isinstance(self.given, list) or self.given.whole or self.given.step is not None

    def all_values(self) -> list[Any]:
        """Return every value, where they can be listed."""
        if isinstance(self.given, list):
            return list(self.given)
        step = self.given.step or 1.0
        count = floor((self.given.high - self.given.low) / step + 1e-9) + 1
        return [self._number(self.given.low + number * step) for number in range(count)]

    def count(self) -> int:
        """Count the values, where they can be listed."""
        if isinstance(self.given, list):
            return len(self.given)
        return floor((self.given.high - self.given.low) / (self.given.step or 1.0) + 1e-9) + 1

    def distribution(self) -> BaseDistribution:
        """Return the distribution that Optuna draws from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if isinstance(self.given, list):
            return CategoricalDistribution([_as_label(choice) for choice in self.given])
        low, high, step, log = self.given.low, self.given.high, self.given.step, self.given.log
        if self.given.whole:
            return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
        return FloatDistribution(low, high, log=log, step=step)

    def to_label(self, value: Any) -> Any:
        """Return a value as Optuna keeps it."""
        return _as_label(value) if isinstance(self.given, list) else value

    def from_label(self, label: Any) -> Any:
        """Return the value that Optuna has drawn."""
        if isinstance(self.given, list):
            return next(choice for choice in self.given if _as_label(choice) == label and _same_type(choice, label))
        return self._number(label)

    def _number(self, value: float) -> float | int:
        whole = isinstance(self.given, Range) and self.given.whole
        return int(value) if whole and float(value).is_integer() else value


def _as_label(choice: Choice) -> Any:
    """Return a choice as a scalar: Optuna takes no lists."""
    return json.dumps(choice) if isinstance(choice, list) else choice


def _same_type(choice: Choice, label: Any) -> bool:
    return isinstance(choice, list) or type(choice) is type(label)


@dataclass(frozen=True)
class Space:
    """All dimensions of a sweep."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def of(cls, sweep: Sweep) -> Space:
        """Return the space of a sweep."""
        return cls(tuple(Dimension(key, given) for key, given in sweep.space.items()))

    def grid_size(self) -> int:
        """Count the combinations of all values, where they can be listed."""
        return prod(dimension.count() for dimension in self.dimensions)

    def grid_point(self, number: int) -> Values:
        """Return a combination of the grid by its number. The last key changes fastest."""
        values: Values = {}
        for dimension in reversed(self.dimensions):
            number, place = divmod(number, dimension.count())
            values[dimension.key] = dimension.all_values()[place]
        return {dimension.key: values[dimension.key] for dimension in self.dimensions}

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the distribution of each key."""
        return {dimension.key: dimension.distribution() for dimension in self.dimensions}

    def from_labels(self, labels: Mapping[str, Any]) -> Values:
        """Return the values that Optuna has drawn."""
        return {dimension.key: dimension.from_label(labels[dimension.key]) for dimension in self.dimensions}

    def to_labels(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values as Optuna keeps them."""
        return {dimension.key: dimension.to_label(values[dimension.key]) for dimension in self.dimensions}

    def corners(self, most: int) -> list[tuple[tuple[str | int, Any], ...]]:
        """Return combinations of ends and choices: all, or where these are more than `most`, all pairs."""
        ends = [dimension.ends() for dimension in self.dimensions]
        if prod(map(len, ends)) <= most:
            return list(product(*ends))
        first = tuple(values[0] for values in ends)
        found = [first]
        for one in range(len(ends)):
            for other in range(one):
                for pair in product(ends[one], ends[other]):
                    point = list(first)
                    point[one], point[other] = pair
                    found.append(tuple(point))
        return list({repr(point): point for point in found}.values())[: 8 * most]


def count_trials(sweep: Sweep) -> int:
    """Return how many trials a sweep has."""
    if sweep.sampler == "grid":
        size = Space.of(sweep).grid_size()
        return min(size, sweep.trials or size)
    return sweep.trials or 1


def as_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values nested as a layer of a spec has them: a position in a list is a key."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        table = nested
        for part in above:
            table = table.setdefault(part, {})
        table[last] = value
    return nested
