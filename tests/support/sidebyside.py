"""Timing things against each other in one run: interleaved, repeated, told as ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping


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
