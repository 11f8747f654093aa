"""`list_runs`: runs by folder, filtered and sorted by any key of their facts, results, spec or environment."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from taskrecipe.comparison.directions import find_directions
from taskrecipe.comparison.run_summary import RunSummary, list_summaries
from taskrecipe.errors import UsageError
from taskrecipe.run.folder_names import RUNS
from taskrecipe.spec.key_path import flatten_tables
from taskrecipe.system.suggestions import did_you_mean

FACTS = ("name", "folder", "state", "recipe", "created", "updates", "total_updates")
"""Keys that are facts of the run itself."""
NEWEST, BEST = "created", "best"
"""The sort keys whose best value comes first: the newest run, the best metric."""

_TABLES_OF_RESULTS = ("final", "rows", "timings")
_OPEN_TABLES = ("environment", "techniques", "callbacks")
"""Tables whose keys depend on the machine and on plugins."""

_FILTER = re.compile(r"\s*([^=<>!\s]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*", re.DOTALL)


def list_runs(*folders: str | Path, where: Sequence[str] = (), sort: str = NEWEST) -> list[RunSummary]:
    """Return the runs in folders, by default in `runs/`, the newest first.

    `where` filters by key: "state=finished", "best.f1>0.8", "name=mrpc-*". `sort` is `created` (newest first), `best`
    or `best.<metric>` (best first), or any other key, in ascending order. Nothing heavy is imported, and a damaged
    folder is listed with its problems.
    """
    filters = [Filter.parse(text) for text in where]
    runs = [run for folder in folders or [RUNS] for run in _list_folder(Path(folder), is_default=not folders)]
    require_known_keys(runs, [*(one.key for one in filters), sort])
    return _sort_runs([run for run in runs if all(one.matches(run) for one in filters)], sort)


def find_value(run: RunSummary, key: str) -> Any:
    """Return a run's value of a key; None where it has none.

    Keys are facts (`state`), `best`, `best.metric`, `best.step`, `best.<metric>`, keys of results.json (`rows.train`),
    of the spec (`train.learning_rate`), and of environment.json after `environment.`.
    """
    if key in FACTS:
        return getattr(run, key)
    table, _, rest = key.partition(".")
    if table == "best":
        return _find_best(run, rest)
    if table == "environment":
        return _walk(run.environment, rest)
    if table == "final":
        return run.results.get("final", {}).get(rest) if isinstance(run.results.get("final"), dict) else None
    found = _walk(run.results, key)
    return found if found is not None and not isinstance(found, dict) else _walk(run.spec, key)


def require_known_keys(runs: Sequence[RunSummary], keys: Sequence[str]) -> None:
    """Raise `UsageError` for a key that no run has and no run of these could have later."""
    for key in keys:
        if runs and not _is_possible(runs, key) and all(find_value(run, key) is None for run in runs):
            known = [*FACTS, BEST, *_list_keys(runs[0])]
            raise UsageError(f"none of the {len(runs)} runs has a key {key!r}{did_you_mean(key, known)}")


@dataclass(frozen=True)
class Filter:
    """One condition on a key."""

    key: str
    operator: str
    value: Any

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Read `KEY=VALUE`, or another comparison: `!=`, `<`, `<=`, `>`, `>=`."""
        found = _FILTER.fullmatch(text)
        if not found:
            raise UsageError(f"{text!r} is no filter: it must be KEY=VALUE, or have !=, <, <=, > or >= in between")
        key, operator, value = found.groups()
        return cls(key, "=" if operator == "==" else operator, _parse_value(value))

    def matches(self, run: RunSummary) -> bool:
        """Whether a run fulfills the condition. A run without the key fulfills only `!=`."""
        found = find_value(run, self.key)
        if self.operator in ("=", "!="):
            return _is_equal(found, self.value) == (self.operator == "=")
        if not _is_comparable(found, self.value):
            return False
        signs = {"<": found < self.value, "<=": found <= self.value, ">": found > self.value, ">=": found >= self.value}
        return bool(signs[self.operator])


def _list_folder(folder: Path, *, is_default: bool) -> list[RunSummary]:
    if not folder.exists():
        if is_default:
            return []
        raise UsageError(f"there is no folder {str(folder)!r}")
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; name a folder that holds runs")
    return list(list_summaries(folder))


def _sort_runs(runs: list[RunSummary], key: str) -> list[RunSummary]:
    """Sort runs. Those without a value come last; equal ones stay in the order of their paths."""
    if key == NEWEST:
        return sorted(runs, key=lambda run: run.created or "", reverse=True)
    if key.partition(".")[0] == BEST and key not in ("best.step", "best.metric"):
        return sorted(runs, key=lambda run: _rank_metric(run, key.partition(".")[2]))
    return sorted(runs, key=lambda run: _rank_value(find_value(run, key)))


def _rank_metric(run: RunSummary, metric: str) -> tuple[bool, float]:
    metric = metric or (run.best.metric if run.best and run.best.metric else "")
    value, direction = _find_best(run, metric) if metric else None, find_directions(run).get(metric, "max")
    if not isinstance(value, int | float) or math.isnan(value):
        return True, 0.0
    return False, -value if direction == "max" else value


def _rank_value(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _find_best(run: RunSummary, rest: str) -> Any:
    if run.best is None:
        return None
    return {"": run.best.value, "metric": run.best.metric, "step": run.best.step, **run.best.metrics}.get(rest)


def _walk(values: Any, key: str) -> Any:
    """Return the value at a dotted key. An entry of a list of tables is found by its `name`."""
    for part in key.split("."):
        if isinstance(values, list):
            values = next((item for item in values if isinstance(item, dict) and item.get("name") == part), None)
        else:
            values = values.get(part) if isinstance(values, dict) else None
    return values


def _is_possible(runs: Sequence[RunSummary], key: str) -> bool:
    """Whether a run could have the key, although none has it yet."""
    table = key.partition(".")[0]
    if key in FACTS or table in _OPEN_TABLES:
        return True
    if table == BEST:
        return not any(run.best for run in runs)
    if table in _TABLES_OF_RESULTS:
        return not any(isinstance(run.results.get(table), dict) for run in runs)
    from taskrecipe.spec.tables import list_spec_keys

    return key in list_spec_keys()


def _list_keys(run: RunSummary) -> list[str]:
    best = [f"best.{metric}" for metric in run.best.metrics] if run.best else []
    environment = (f"environment.{key}" for key in flatten_tables(run.environment))
    return [*best, *flatten_tables(run.spec), *flatten_tables(run.results), *environment]


def _parse_value(text: str) -> Any:
    """Read a number, a boolean or a text in quotes as TOML has it; anything else is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _is_equal(found: Any, value: Any) -> bool:
    if isinstance(value, str) and isinstance(found, str) and any(mark in value for mark in "*?["):
        return fnmatchcase(found, value)
    if isinstance(value, bool) or isinstance(found, bool):
        return found is value
    return bool(found == value) or (isinstance(value, str) and str(found) == value)


def _is_comparable(found: Any, value: Any) -> bool:
    if isinstance(found, str) and isinstance(value, str):
        return True
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in (found, value))
