"""The charts of a sweep, from its `sweep.json`: history, parallel coordinates, slices, importance, curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskrecipe.report.chart import BarChart, LineChart, Series
from taskrecipe.report.parallel import ParallelAxis, ParallelChart, ParallelLine, spread_places
from taskrecipe.report.scale import choose_log_ticks, choose_ticks, format_ticks

X = "x"
MOST_CURVES = 5
"""Trials whose curves are drawn: the best ones."""

Trials = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class SearchedKey:
    """A key of the space: its name, and how its values are laid out."""

    key: str
    given: Any

    @property
    def choices(self) -> list[Any] | None:
        """The listed values; None for a range."""
        return list(self.given) if isinstance(self.given, list) else None

    @property
    def is_log(self) -> bool:
        """Whether it is drawn along a logarithm."""
        return isinstance(self.given, dict) and bool(self.given.get("log"))

    def number(self, value: Any) -> float:
        """Return a value as a number: for a listed one its position."""
        return float(self.choices.index(value)) if self.choices is not None else float(value)

    def has(self, value: Any) -> bool:
        """Whether a value is one of the key's: the space may have been changed."""
        return value in self.choices if self.choices is not None else isinstance(value, int | float)


def searched_keys(facts: Mapping[str, Any]) -> list[SearchedKey]:
    """Return the keys of a sweep's space."""
    return [SearchedKey(key, given) for key, given in facts["sweep"]["space"].items()]


def valued_trials(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the trials that have a value and whose values the space still has."""
    keys = searched_keys(facts)
    return [
        trial
        for trial in facts["trials"]
        if trial["value"] is not None and all(key.has(trial["values"].get(key.key)) for key in keys)
    ]


def chart_history(facts: Mapping[str, Any]) -> LineChart:
    """Chart the value of each trial in the order of their numbers, and the best of those that reached the end."""
    sign = 1.0 if facts["direction"] == "max" else -1.0
    best: list[tuple[float, float]] = []
    for trial in facts["trials"]:
        if trial["state"] == "finished" and (not best or sign * trial["value"] > sign * best[-1][1]):
            number = float(trial["number"])
            best += [(number, best[-1][1])] if best else []  # a step: the best stays until there is a better one
            best.append((number, trial["value"]))
    if best:
        best.append((float(facts["trials"][-1]["number"]), best[-1][1]))
    series = [*_state_series(facts["trials"], lambda trial: float(trial["number"]))]
    if len(best) > 1:
        series.append(Series("best so far", {X: [x for x, _ in best]}, [y for _, y in best], color=2))
    return LineChart("history", f"{facts['metric']} of each trial", series, {X: "trial"})


def chart_slices(facts: Mapping[str, Any]) -> list[LineChart]:
    """Chart the value of each trial over each key."""
    trials = valued_trials(facts)
    charts = []
    for key in searched_keys(facts):
        series = _state_series(trials, lambda trial, key=key: key.number(trial["values"][key.key]))
        names = {X: [_show(choice) for choice in key.choices]} if key.choices is not None else {}
        span = {X: (-0.5, len(key.choices) - 0.5)} if key.choices is not None else {}
        log = frozenset({X}) if key.is_log else frozenset[str]()
        charts.append(
            LineChart(f"slice-{key.key}", key.key, series, {X: key.key}, names=names, span=span, log_axes=log)
        )
    return charts


def chart_importance(facts: Mapping[str, Any]) -> BarChart | None:
    """Chart how much of the differences between trials each key explains."""
    found = facts.get("importance")
    if not found:
        return None
    bars = sorted(((key, 100 * share) for key, share in found.items()), key=lambda bar: -bar[1])
    note = "Share of the differences between trials that each key explains by itself or with others (fANOVA)."
    return BarChart("importance", "Importance of each key", bars, unit="%", note=note)


def chart_curves(facts: Mapping[str, Any]) -> LineChart | None:
    """Chart the best value so far of the best trials, over the share of their updates."""
    trials = {trial["number"]: trial for trial in facts["trials"]}
    series = []
    for color, number in enumerate(facts["ranking"][:MOST_CURVES]):
        run = trials[number]["runs"][0]
        points = [(step / run["total"], best) for step, best in run["curve"] if best is not None and run["total"]]
        if points:
            places = {X: [100 * share for share, _ in points]}
            series.append(Series(f"trial {number}", places, [y for _, y in points], color=color, markers=True))
    if not series:
        return None
    title = f"Best {facts['metric']} so far of the best trials"
    return LineChart("curves", title, series, {X: "% of all updates"}, span={X: (0.0, 100.0)})


def chart_parallel(facts: Mapping[str, Any]) -> ParallelChart | None:
    """Chart all trials across their keys and their value."""
    trials, keys = valued_trials(facts), searched_keys(facts)
    if len(trials) < 2:
        return None
    values = [float(trial["value"]) for trial in trials]
    columns = [_lay_out(key, [trial["values"][key.key] for trial in trials]) for key in keys]
    places = spread_places(values)
    metric = ParallelAxis(facts["metric"], _ticks(min(values), max(values)))
    best = facts["best"]["number"] if facts["best"] else None
    ranks = sorted(values, reverse=facts["direction"] == "max")
    lines = [
        ParallelLine(
            str(trial["number"]),
            [*(column[1][n] for column in columns), places[n]],
            [*(_cell(trial["values"][key.key]) for key in keys), values[n]],
            1.0 - ranks.index(values[n]) / max(1, len(ranks) - 1),
            trial["number"] == best,
            trial["state"] != "finished",
        )
        for n, trial in enumerate(trials)
    ]
    note = "Each line is a trial, the stronger the better. The best one is marked; dashed ones were stopped early."
    return ParallelChart("parallel", "All trials", [*(column[0] for column in columns), metric], lines, note)


def _state_series(trials: Trials, place: Any) -> list[Series]:
    """Return the trials as dots: those that trained to the end, and those that were stopped early."""
    groups = [("to the end", 0, "finished"), ("stopped early", 6, None)]
    series = []
    for name, color, state in groups:
        chosen = [t for t in trials if t["value"] is not None and (t["state"] == "finished") == (state == "finished")]
        if chosen:
            where = {X: [place(trial) for trial in chosen]}
            heights = [float(trial["value"]) for trial in chosen]
            series.append(Series(name, where, heights, color=color, line=False, markers=True))
    return series


def _lay_out(key: SearchedKey, values: Sequence[Any]) -> tuple[ParallelAxis, list[float]]:
    """Return the axis of a key, and where values lie on it."""
    if key.choices is not None:
        last = max(1, len(key.choices) - 1)
        ticks = [(n / last if len(key.choices) > 1 else 0.5, _show(choice)) for n, choice in enumerate(key.choices)]
        return ParallelAxis(key.key, ticks), [ticks[key.choices.index(value)][0] for value in values]
    low, high = float(key.given["low"]), float(key.given["high"])
    if key.is_log:
        low, high = math.log10(low), math.log10(high)
        known = choose_log_ticks(float(key.given["low"]), float(key.given["high"]))
        ticks = [((math.log10(tick) - low) / (high - low), f"{tick:g}") for tick in known]
        return ParallelAxis(key.key, ticks), [(math.log10(value) - low) / (high - low) for value in values]
    return ParallelAxis(key.key, _ticks(low, high)), [(value - low) / (high - low) for value in values]


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    if low == high:
        return [(0.5, f"{low:.4g}")]
    ticks = choose_ticks(low, high)
    return [((tick - low) / (high - low), text) for tick, text in zip(ticks, format_ticks(ticks), strict=True)]


def _cell(value: Any) -> str | float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _show(value)


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
