"""Whether metrics that were measured twice are the same."""

from __future__ import annotations

import math
from collections.abc import Mapping


def is_same(one: float | None, other: float | None, tolerance: float) -> bool:
    """Return whether two values differ by no more than the tolerance, absolute or relative. NaN, or null, is itself."""
    missing = [value is None or math.isnan(value) for value in (one, other)]
    if one is None or other is None or any(missing):
        return all(missing)
    return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def find_differences(logged: Mapping[str, float | None], metrics: Mapping[str, float], tolerance: float) -> list[str]:
    """Return each metric that is not as it was logged, with both values. What was not logged is not compared."""
    return [
        f"{name}: logged {logged[name]!r}, now {value!r}"
        for name, value in metrics.items()
        if name in logged and not is_same(logged[name], value, tolerance)
    ]
