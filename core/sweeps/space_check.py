"""Check the `[sweep]` of a spec: its keys, both ends of each range, every choice, and how they go together.

Each end and choice is put into the spec, as `--set` would do it, and the whole is validated: so a sweep meets the same
rules, recipes and plugins as the runs that it will start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taskrecipe.run.resume_guard import is_harmless
from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import KeyPath, dotted_key, has_value, value_at
from taskrecipe.spec.layers import Layers
from taskrecipe.spec.sources import Source
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.sweep import Range, Sweep
from taskrecipe.spec.tables import list_spec_keys
from taskrecipe.sweeps.space import Dimension, Space, as_settings
from taskrecipe.system.suggestions import closest

MOST_POINTS = 128
"""Combinations of ends and choices that are all checked. Of more, all pairs are."""

MOST_GRID = 100_000

FIXED = {
    "spec_version": "it is the version of the format",
    "recipe": "metrics of different recipes can't be compared",
    "name": "trials have names of their own",
    "seed": "set [sweep].seeds to train each trial with several seeds",
    "evaluate.best": "all trials are judged by one metric",
    "evaluate.splits": "all trials are judged on the same rows",
    "evaluate.choose_on_test": "all trials are judged in the same way",
    "expect": "it changes no result",
    "sweep": "a sweep can't search over itself",
}
"""Keys that can't be searched over, and why."""

Point = tuple[tuple[str | int, Any], ...]
"""A value of each dimension, with its place in the file."""
Check = Callable[[Layers], list[Finding]]


def find_sweep_problems(layers: Layers, spec: Spec, check: Check) -> list[Finding]:
    """Return what is wrong with the sweep of a spec that is right apart from it.

    `check` validates layers, and returns what it finds.
    """
    sweep = spec.sweep
    if sweep is None:
        return []
    findings = [*_check_settings(sweep, spec), *(f for d in Space.of(sweep).dimensions for f in _check_key(d, layers))]
    return findings or list(_check_points(layers, Space.of(sweep), check))


# Settings -------------------------------------------------------------------------------------------


def _check_settings(sweep: Sweep, spec: Spec) -> Iterator[Finding]:
    if not sweep.space:
        yield Finding(("sweep",), "missing-key", "[sweep] needs [sweep.space]: the keys to search over")
    for dimension in Space.of(sweep).dimensions:
        yield from _check_range(dimension) if isinstance(dimension.given, Range) else _check_choices(dimension)
    if sweep.sampler == "grid":
        yield from _check_grid(sweep)
    elif sweep.trials is None:
        yield Finding(("sweep",), "missing-key", "[sweep] needs 'trials': how many combinations of values to try")
    numbers = sum(isinstance(given, Range) for given in sweep.space.values())
    if sweep.sampler == "cmaes" and numbers < 2:
        message = f"[sweep].sampler 'cmaes' needs at least two ranges of numbers, and [sweep.space] has {numbers}"
        yield Finding(("sweep", "sampler"), "conflict", message, "tpe")
    if sweep.pruner != "none" and _evaluates_once(spec):
        message = f"[sweep].pruner '{sweep.pruner}' needs evaluations before the end: set [evaluate].every to a number"
        yield Finding(("sweep", "pruner"), "conflict", message + " of updates")


def _evaluates_once(spec: Spec) -> bool:
    every, train = spec.evaluate.every, spec.train
    if every == "epoch":
        return train.epochs == 1
    return every == "end" or (train.updates is not None and every >= train.updates)


def _check_range(dimension: Dimension) -> Iterator[Finding]:
    given = dimension.given
    if not isinstance(given, Range):
        return
    at, ends = _place(dimension), (given.low, given.high)
    if given.low >= given.high:
        yield Finding((*at, "high"), "out-of-range", f"high must be above low, {given.low:g}; found {given.high:g}")
    if given.log and given.low <= 0:
        yield Finding((*at, "low"), "out-of-range", f"low must be above 0 for log = true; found {given.low:g}")
    if given.log and given.step is not None:
        yield Finding((*at, "step"), "conflict", "step has no meaning with log = true", at_key=True)
    if given.whole:
        for name, value in (("low", given.low), ("high", given.high), ("step", given.step)):
            if value is not None and not float(value).is_integer():
                yield Finding((*at, name), "wrong-type", f"{name} must be an integer with int = true; found {value:g}")
    if given.step is not None and given.step > ends[1] - ends[0] > 0:
        yield Finding((*at, "step"), "out-of-range", f"step must be at most high - low, {ends[1] - ends[0]:g}")


def _check_choices(dimension: Dimension) -> Iterator[Finding]:
    seen: set[str] = set()
    for place, choice in dimension.ends():
        text = json.dumps(choice)
        if text in seen:
            message = f"{text} is given twice for '{dimension.key}'"
            yield Finding((*_place(dimension), place), "duplicate-key", message)
        seen.add(text)


def _check_grid(sweep: Sweep) -> Iterator[Finding]:
    space = Space.of(sweep)
    for dimension in space.dimensions:
        if not dimension.is_listed() or (isinstance(dimension.given, Range) and dimension.given.log):
            message = f"a grid needs the values of '{dimension.key}' as a list, or a range with a step"
            yield Finding(_place(dimension), "conflict", message)
            return
    if space.dimensions and space.grid_size() > MOST_GRID:
        message = f"the grid has {space.grid_size():,} combinations, more than {MOST_GRID:,}"
        yield Finding(("sweep", "sampler"), "too-large", message, "random")


# Keys -----------------------------------------------------------------------------------------------


def _check_key(dimension: Dimension, layers: Layers) -> Iterator[Finding]:
    key, at = dimension.key, _place(dimension)
    fixed = next((name for name in FIXED if key == name or key.startswith(f"{name}.")), None)
    if fixed:
        yield Finding(at, "conflict", f"'{key}' can't be searched over: {FIXED[fixed]}", at_key=True)
    elif is_harmless(key):
        yield Finding(at, "no-effect", f"'{key}' can't be searched over: it changes no result", at_key=True)
    elif wrong := _find_missing_element(dimension.path, layers.values):
        yield Finding(at, "unknown-key", f"'{key}' is no key: {wrong}", at_key=True)
    elif "." not in key and not has_value(layers.values, (key,)):
        known = [name for name in list_spec_keys() if "." in name]
        ending = next((name for name in known if name.endswith(f".{key}")), None)
        message = f"'{key}' is not a key of the spec: name its table too"
        yield Finding(at, "unknown-key", message, ending or closest(key, known), at_key=True)


def _find_missing_element(path: KeyPath, values: Any) -> str | None:
    """Say why a position in a list leads nowhere; None if it leads somewhere."""
    for n, part in enumerate(path):
        if isinstance(part, int):
            there = value_at(values, path[:n]) if has_value(values, path[:n]) else None
            if not isinstance(there, list):
                return f"'{dotted_key(path[:n])}' is not given as a list"
            if part >= len(there):
                return f"'{dotted_key(path[:n])}' has {len(there)} elements, counted from 0"
    return None


# Values ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Failure:
    """A finding at a point of the space."""

    point: Point
    finding: Finding


def _check_points(layers: Layers, space: Space, check: Check) -> Iterator[Finding]:
    points = space.corners(MOST_POINTS)
    failures: dict[tuple[KeyPath, str], list[_Failure]] = {}
    for point in points:
        for finding in check(_with_point(layers, space, point)):
            failures.setdefault((finding.path, finding.message), []).append(_Failure(point, finding))
    seen: set[tuple[KeyPath, str]] = set()
    for group in failures.values():
        found = _explain(space, points, group)
        if (found.path, found.message) not in seen:
            seen.add((found.path, found.message))
            yield found


def _with_point(layers: Layers, space: Space, point: Point) -> Layers:
    values = {dimension.key: value for dimension, (_, value) in zip(space.dimensions, point, strict=True)}
    return Layers([*layers.sources, Source("--set", "", as_settings(values), layers.file.folder, "set")])


def _explain(space: Space, points: Sequence[Point], group: Sequence[_Failure]) -> Finding:
    """Say which values of the space lead to a finding, and where they are."""
    finding, point = group[0].finding, group[0].point
    guilty = [n for n in range(len(space.dimensions)) if _is_guilty(n, points, group)]
    owners = [n for n, dimension in enumerate(space.dimensions) if dimension.path == finding.path]
    blamed = owners[0] if owners else guilty[0] if guilty else 0
    dimension, place = space.dimensions[blamed], point[blamed][0]
    words = [f"{space.dimensions[n].key} = {json.dumps(point[n][1])}" for n in guilty if [n] != owners]
    message = finding.message + (f" (with {' and '.join(words)})" if words else "")
    if finding.at_key and owners:
        close = finding.suggestion
        if close and finding.code == "unknown-key":
            close = dotted_key((*finding.path[:-1], close)).replace("[", ".").replace("]", "")
        return replace(finding, path=_place(dimension), message=message, suggestion=close, spoils=())
    if _wants_integer(dimension, finding):
        message += "; add int = true, to draw integers only"
    suggestion = finding.suggestion if owners and isinstance(dimension.given, list) else None
    return Finding((*_place(dimension), place), finding.code, message, suggestion)


def _is_guilty(number: int, points: Sequence[Point], group: Sequence[_Failure]) -> bool:
    """Whether a dimension matters: not all of its values lead to the finding."""
    return {repr(failure.point[number]) for failure in group} < {repr(point[number]) for point in points}


def _wants_integer(dimension: Dimension, finding: Finding) -> bool:
    given = dimension.given
    return (
        isinstance(given, Range) and not given.whole and finding.code == "wrong-type" and "integer" in finding.message
    )


def _place(dimension: Dimension) -> KeyPath:
    return ("sweep", "space", dimension.key)
