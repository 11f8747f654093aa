"""What a sweep is about: its file, its base, its metric; kept in its folder, to notice when it has changed.

harmless           more trials, another number at a time, what is printed and kept: only reported
changes results    refused, unless `--allow KEY` is given; trials that have begun stay as they are
impossible         results can't be compared: start a new sweep
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Direction, best_metric
from taskrecipe.run.resume_guard import is_harmless
from taskrecipe.spec.dump import to_toml
from taskrecipe.spec.key_path import flatten_tables, is_within
from taskrecipe.spec.layers import Layers, load_layers
from taskrecipe.spec.resolve import Resolved, resolve
from taskrecipe.spec.sweep import Sweep
from taskrecipe.spec.table import LARGEST
from taskrecipe.sweeps.folder import BASE, PLAN, STATE, SweepFolder

Kind = Literal["sweep", "repeat"]

HARMLESS = ("sweep.trials", "sweep.parallel", "sweep.ahead", "sweep.max_failures", "sweep.seeds")
IMPOSSIBLE = ("recipe", "evaluate.best", "evaluate.splits", "metric", "kind")
"""Keys that decide what the value of a trial is."""


@dataclass(frozen=True)
class Settings:
    """A sweep as its file and the command line describe it."""

    kind: Kind
    file: str
    sweep: Sweep
    spec: dict[str, Any]
    """The base with all defaults."""
    text: str
    """The base as it was given, with the origin of each value."""
    seed: int
    metric: str
    direction: Direction
    given: dict[str, Any] = field(default_factory=dict)
    """The values of the base, without defaults."""
    own: dict[str, Any] = field(default_factory=dict)
    """Those of them that the sweep's file and the command line give."""
    parent: str | None = None
    """What the sweep's file extends."""
    sets: tuple[str, ...] = ()
    processes: int = 1
    on_cpu: bool = False
    wants_sample: bool = False
    sample_reason: str | None = None
    """Why the runs use sample data; None if they use the spec's own."""
    notes: list[str] = field(default_factory=list)
    """What has changed since the sweep began."""

    @property
    def is_sample(self) -> bool:
        """Whether the runs use sample data."""
        return self.sample_reason is not None

    @classmethod
    def read(cls, file: Path, sets: Sequence[str], *, sample: bool, kind: Kind, changes: dict[str, Any]) -> Settings:
        """Read the file of a sweep, or of a spec to repeat. `changes` replaces keys of `[sweep]`."""
        resolved = resolve(file, sets)
        spec = resolved.spec
        given = Sweep() if kind == "repeat" else spec.sweep
        if given is None:
            raise UsageError(f"{file} has no table [sweep]; train it with `recipe run {file}`")
        recipe = installed().recipe(spec.recipe)(spec)
        metric, direction = best_metric(recipe)
        return cls(
            kind,
            str(file.absolute()),
            given.model_copy(update=changes),
            spec.model_copy(update={"sweep": None, "expect": {}}).model_dump(mode="json"),
            _write_base(resolved),
            spec.seed,
            metric,
            direction,
            _base_values(resolved.values),
            *_find_own(file, sets, resolved.values),
            tuple(sets),
            spec.launch.processes,
            spec.launch.device == "cpu",
            sample or spec.data.sample,
        )

    @property
    def trial_sets(self) -> tuple[str, ...]:
        """What the command line changes in the spec of each trial: all but the sweep itself."""
        tables = [text.partition("=")[0].strip().partition(".")[0] for text in self.sets]
        return tuple(text for text, table in zip(self.sets, tables, strict=True) if table not in ("sweep", "expect"))

    def run_names(self, trial: int) -> list[tuple[str, int]]:
        """Return the folder of each run of a trial, and its seed."""
        seeds = [(self.seed + number) % LARGEST for number in range(self.sweep.seeds)]
        if self.kind == "repeat":
            return [(f"seed-{seed}", seed) for seed in seeds]
        name = f"trial-{trial:03}"
        return [(name if number == 0 else f"{name}-seed-{seed}", seed) for number, seed in enumerate(seeds)]

    def command(self, folder: Path) -> str:
        """Return the command that continues the sweep."""
        more = ["--sample"] if self.wants_sample else []
        more += [word for assignment in self.sets for word in ("--set", assignment)]
        more += ["--seeds", str(self.sweep.seeds)] if self.kind == "repeat" else []
        return shlex.join(["recipe", self.kind, self.file, "--out", str(folder), *more])

    # What has changed -------------------------------------------------------------------------------

    def record(self, folder: SweepFolder) -> None:
        """Keep what the sweep is about, and the base that its trials start from."""
        folder.write_text(BASE, self.text)
        folder.write_json(f"{STATE}/{PLAN}", {"format": 1, "sample_reason": self.sample_reason, **self._facts()})

    def _facts(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "file": self.file,
            "metric": [self.metric, self.direction],
            "wants_sample": self.wants_sample,
            "sweep": self.sweep.model_dump(mode="json", by_alias=True),
            "spec": self.spec,
        }

    def find_changes(self, recorded: dict[str, Any], allow: Sequence[str]) -> list[str]:
        """Return the changes since the sweep began, in words; raise `UsageError` for those that are not allowed."""
        old, new = _flatten(recorded), _flatten(self._facts())
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key) and key != "file"]
        unused = [key for key in allow if not any(is_within(name, key) for name in changed)]
        lines = [f"  --allow {key}: nothing of that name has changed" for key in unused]
        notes = []
        for key in changed:
            words = f"{key}: {_show(old.get(key))} → {_show(new.get(key))}"
            if any(is_within(key, name) for name in IMPOSSIBLE):
                lines.append(f"  {words} is impossible: trials could not be compared; name another folder by --out")
            elif not _keeps_results(key) and not any(is_within(key, name) for name in allow):
                lines.append(f"  {words} changes results; if you mean it: --allow {key}")
            notes.append(f"changed since the sweep began: {words}")
        if lines:
            raise UsageError("\n".join(["the sweep can't be continued; changed since it began:", *lines]))
        return notes


def _base_values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("sweep", "expect")}


def _write_base(resolved: Resolved) -> str:
    return to_toml(_base_values(resolved.values), resolved.origins.of)


def _find_own(file: Path, sets: Sequence[str], values: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the values that the file and `sets` give, with absolute paths, and the file that the file extends."""
    layers = load_layers(file, sets)
    parents = [source for source in layers.sources if source.kind == "parent"]
    own = Layers([source for source in layers.sources if source.kind != "parent"]).values
    return _pick(_base_values(own), values), parents[-1].name if parents else None


def _pick(own: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the part of `values` that `own` has too."""
    return {
        key: _pick(inner, values[key]) if isinstance(inner, dict) and isinstance(values[key], dict) else values[key]
        for key, inner in own.items()
    }


def _flatten(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what a sweep is about by dotted key. A key of the space is one value."""
    sweep = dict(facts["sweep"])
    space = {f"sweep.space.{key}": value for key, value in sweep.pop("space").items()}
    rest = {key: facts[key] for key in ("kind", "metric", "wants_sample")}
    return {**flatten_tables(facts["spec"]), **flatten_tables({"sweep": sweep}), **space, **rest}


def _keeps_results(key: str) -> bool:
    return (is_harmless(key) and not is_within(key, "sweep")) or any(is_within(key, name) for name in HARMLESS)


def _show(value: Any) -> str:
    return "nothing" if value is None else repr(value)
