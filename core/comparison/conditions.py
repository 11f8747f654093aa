"""What differs between runs besides their specs: data, model files, packages, processes, machine and git state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from taskrecipe.comparison.run_summary import RunSummary
from taskrecipe.spec.key_path import flatten_tables

Subject = Literal["data", "model", "packages", "processes", "machine", "git"]


@dataclass(frozen=True)
class ConditionDifference:
    """A fact about how runs were made that is not the same for all of them."""

    subject: Subject
    key: str
    values: tuple[Any, ...]
    """Its value in each run; None where it is not known."""

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        return {**asdict(self), "values": list(self.values)}


def find_condition_differences(runs: Sequence[RunSummary]) -> list[ConditionDifference]:
    """Return the facts that are not the same for all runs, subject by subject."""
    facts = [_describe(run) for run in runs]
    found = []
    for subject, key in dict.fromkeys(pair for each in facts for pair in each):
        values = tuple(each.get((subject, key)) for each in facts)
        if any(value != values[0] for value in values):
            found.append(ConditionDifference(subject, key, values))
    return sorted(found, key=lambda one: _ORDER.index(one.subject))


_ORDER: list[Subject] = ["data", "model", "packages", "processes", "machine", "git"]


def _describe(run: RunSummary) -> dict[tuple[Subject, str], Any]:
    environment, results = run.environment, run.results
    hub = environment.get("hub") if isinstance(environment.get("hub"), dict) else {}
    subjects: dict[Subject, dict[str, Any]] = {
        "data": {
            "source": results.get("data"),
            "fingerprint": environment.get("data"),
            "commit": (hub or {}).get("data"),
            "rows": results.get("rows"),
        },
        "model": {
            "commit": {name: commit for name, commit in (hub or {}).items() if name != "data"},
            "files": environment.get("model_files"),
            "parameters": results.get("parameters"),
        },
        "packages": {
            "python": environment.get("python"),
            **_as_dict(environment.get("packages")),
            "plugins": environment.get("plugins"),
        },
        "processes": {"processes": environment.get("processes"), "device": results.get("device")},
        "machine": _as_dict(environment.get("machine")),
        "git": _as_dict(environment.get("git")),
    }
    return {
        (subject, key): value for subject, table in subjects.items() for key, value in flatten_tables(table).items()
    }


def _as_dict(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}
