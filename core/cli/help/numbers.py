"""Write numbers, times and shares as a person reads them."""

from __future__ import annotations

import math
from typing import Any


def format_number(value: float) -> str:
    """Write a number with four digits after the point, or four significant ones where that says too little."""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.4g}"


def format_change(value: float) -> str:
    """Write a difference with its sign."""
    return f"{'-' if value < 0 else '+'}{format_number(abs(value))}"


def format_range(low: float, high: float) -> str:
    """Write an interval of a difference, both ends with the same digits."""
    if max(abs(low), abs(high)) >= 0.001 and max(abs(low), abs(high)) < 1000:
        return f"{low:+.4f} … {high:+.4f}"
    return f"{low:+.3g} … {high:+.3g}"


def format_p_value(value: float) -> str:
    """Write a p-value with its sign, as in a sentence: `p = 0.012` or `p < 0.001`."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def format_duration(seconds: float) -> str:
    """Write a time span in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_value(value: Any) -> str:
    """Write a value of a spec or of JSON on one line; a missing one as a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    from taskrecipe.cli.help.fields import format_toml

    return format_toml(value)
