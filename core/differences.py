"""What is not as it was when a run was saved, and whether the run may go on all the same.

    harmless           the same training, up to float rounding and which dropout mask is drawn: told, and that is all
    changes results    another training from here on: refused, unless `--allow KEY` says that it is meant
    impossible         what is saved doesn't fit: start a new run

A key that is in none of the lists below changes results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taskrecipe.core.errors import UsageError

Kind = Literal["harmless", "changes results", "impossible"]

HARMLESS = (
    "spec_version",
    "name",
    "log",
    "checkpoint",
    "track",
    "launch",
    "processes",
    "train.accumulate",
    "train.gradient_checkpointing",
    "train.compile",
    "evaluate.batch_size",
    "data.workers",
    "data.offline",
)
"""Where things are shown and kept, and how the same work is split up."""

IMPOSSIBLE = {
    "recipe": "another task has other weights",
    "model.type": "another architecture has other weights",
    "model.config": "the weights have the shapes of the saved configuration",
    "optimizer.name": "each optimizer has a state of its own kind",
    "train.ema": "the average so far was taken with the saved decay",
    "evaluate.best": "the best so far was found by the saved metric",
}
"""Each with the reason."""

ORDER_OF_ROWS = "data.streaming"
"""The one key of `[data]` that matters although the rows are the same."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was."""

    key: str
    old: Any
    new: Any
    kind: Kind

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} → {_shown(self.new)}"


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[Difference]:
    """Everything that differs between two runs, each described by `spec`, `data`, `processes` and `versions`.

    `data` has a fingerprint for each split, `versions` one for each package. Keys are those of the spec,
    `rows.<split>`, `processes` and `versions.<package>`; one that is missing on a side is None there.
    """
    old, new = _described(saved), _described(current)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    same_rows = not any(_within(key, "rows") for key in changed)
    return [Difference(key, old.get(key), new.get(key), _kind(key, old, new, same_rows)) for key in changed]


def require_same_run(
    saved: Mapping[str, Any], current: Mapping[str, Any], allow: Sequence[str] = ()
) -> list[Difference]:
    """Raise `UsageError` with everything that stands in the way of resuming; return what else differs.

    `allow` names keys or whole tables whose changes are meant.
    """
    found = differences(saved, current)
    unused = [key for key in allow if not any(_within(difference.key, key) for difference in found)]
    lines = [f"  --allow {key}: nothing of that name has changed" for key in unused]
    for difference in found:
        if difference.kind == "impossible":
            lines.append(f"  {difference} can't be: {_reason(difference.key)}; start a new run")
        elif difference.kind == "changes results" and not any(_within(difference.key, key) for key in allow):
            lines.append(f"  {difference} changes results; if that is meant: --allow {difference.key}")
    if lines:
        raise UsageError("\n".join(["the run can't be resumed like this:", *lines]))
    return found


def _described(run: Mapping[str, Any]) -> dict[str, Any]:
    tables = {"rows": run["data"], "processes": run["processes"], "versions": run["versions"]}
    return _flat(run["spec"]) | _flat(tables)


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; a list is one value."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _kind(key: str, old: Mapping[str, Any], new: Mapping[str, Any], same_rows: bool) -> Kind:
    if _reason(key):
        return "impossible"
    same_source = _within(key, "data") and same_rows and key != ORDER_OF_ROWS
    same_release = _within(key, "versions") and _release(old.get(key)) == _release(new.get(key))
    harmless = same_source or same_release or any(_within(key, listed) for listed in HARMLESS)
    return "harmless" if harmless else "changes results"


def _reason(key: str) -> str | None:
    return next((reason for listed, reason in IMPOSSIBLE.items() if _within(key, listed)), None)


def _within(key: str, table: str) -> bool:
    return key == table or key.startswith(f"{table}.")


def _release(version: Any) -> list[str]:
    """Major and minor version; the next patch of one computes the same."""
    return str(version).split(".")[:2]


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
