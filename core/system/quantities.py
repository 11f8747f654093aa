"""Numbers, amounts of memory and time spans as people write them."""

from __future__ import annotations

import math


def format_number(value: float | None) -> str:
    """Write a number for a table: four digits that count, whole numbers whole."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if size < 1e-3 else f"{value:.4f}" if size < 10 else f"{value:.2f}"


def format_bytes(amount: float) -> str:
    """Write an amount of memory or disk."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}" if unit != "B" else f"{amount:.0f} B"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Write a time span: 8.2 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
