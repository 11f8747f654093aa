"""Timing things against each other in one run: interleaved, repeated, told as ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping


def compare(contenders: Mapping[str, Callable[[], float]], rounds: int, title: str) -> dict[str, float]:
    """Run every contender in turn, `rounds` times; print and return each one's median ratio to the first.

    Each returns the seconds it took. Ratios are taken within a round, so that a slow moment of the machine
    hits all alike; the first round warms up and does not count.
    """
    for run in contenders.values():
        run()
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(run())
    base = next(iter(times))
    print(f"\n{title} ({rounds} rounds, ratio to {base!r}: median, lowest to highest)")
    medians = {}
    for name, seconds in times.items():
        ratios = sorted(a / b for a, b in zip(seconds, times[base], strict=True))
        medians[name] = statistics.median(ratios)
        print(f"  {name:<42} {medians[name]:6.3f}   {ratios[0]:.3f} to {ratios[-1]:.3f}")
    return medians


def in_step(contenders: Mapping[str, Callable[[], Iterator[object]]], rounds: int, title: str) -> dict[str, float]:
    """Let contenders take their steps in turn, one each; print and return the ratio of the medians to the first's.

    Each returns an iterator that takes a step when it is asked for the next. A slow moment of the machine is shorter
    than a step or hits all alike; the first round warms up and does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        running = {name: make() for name, make in contenders.items()}
        while all(_step(running[name], times[name]) for name in contenders):
            pass
        if not number:
            times = {name: [] for name in contenders}
    base = next(iter(times))
    steps = len(times[base])
    print(f"\n{title} ({steps} steps in turn, ratio to {base!r}: of medians, quartiles of single steps)")
    medians = {}
    for name, seconds in times.items():
        low, _, high = statistics.quantiles((a / b for a, b in zip(seconds, times[base], strict=True)), n=4)
        medians[name] = statistics.median(seconds) / statistics.median(times[base])
        print(f"  {name:<42} {medians[name]:6.3f}   {low:.3f} to {high:.3f}")
    return medians


def _step(running: Iterator[object], times: list[float]) -> bool:
    start = time.perf_counter()
    if next(running, None) is None:
        return False
    times.append(time.perf_counter() - start)
    return True
