"""`[expect]`: whether a run that has finished came to what its spec says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taskrecipe.checkpoints.checkpoint import find_checkpoint
from taskrecipe.checkpoints.fingerprint import fingerprint
from taskrecipe.spec.sweep import Bounds, Expectation
from taskrecipe.system.quantities import format_number

UPDATES, FINGERPRINT = "updates", "fingerprint"
"""The keys of `[expect]` that are no metrics."""


def check_expectations(
    expect: Mapping[str, Expectation], results: Mapping[str, Any], checkpoints: Path
) -> list[dict[str, Any]]:
    """Return for each key of `[expect]` what was expected and found, and whether it is met.

    Metrics are those of the exported weights, the fingerprint is that of the last checkpoint.
    """
    return [_check(key, wanted, _find(key, results, checkpoints)) for key, wanted in expect.items()]


def describe_unmet(checks: Sequence[Mapping[str, Any]]) -> str | None:
    """Say what was not met; None if everything was."""
    lines = [
        f"  {check['key']}: expected {check['expected']}, found {_show(check['found'])}"
        for check in checks
        if not check["met"]
    ]
    return "\n".join(["the run has finished, but not as [expect] says:", *lines]) if lines else None


def meets(bounds: Bounds, value: float | None) -> bool:
    """Whether a metric lies within its bounds."""
    if value is None or value != value:
        return False
    above = bounds.at_least is None or value >= bounds.at_least
    return above and (bounds.at_most is None or value <= bounds.at_most)


def _check(key: str, wanted: Expectation, found: Any) -> dict[str, Any]:
    met = meets(wanted, found) if isinstance(wanted, Bounds) else wanted == found
    return {"key": key, "expected": _describe(wanted), "found": found, "met": met}


def _find(key: str, results: Mapping[str, Any], checkpoints: Path) -> Any:
    if key == UPDATES:
        return results["updates"]
    if key == FINGERPRINT:
        return fingerprint(find_checkpoint(checkpoints, "last").path)
    return exported_metrics(results).get(key)


def exported_metrics(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics of the weights that were exported."""
    best, final = results.get("best"), results.get("final")
    return best["metrics"] if best else final or {}


def _describe(wanted: Expectation) -> str:
    if not isinstance(wanted, Bounds):
        return str(wanted)
    ends = [("at least", wanted.at_least), ("at most", wanted.at_most)]
    return " and ".join(f"{words} {value:g}" for words, value in ends if value is not None)


def _show(value: Any) -> str:
    return "nothing" if value is None else format_number(value) if isinstance(value, float) else str(value)
