"""What has changed since a checkpoint was saved, and whether the run can still be resumed.

    harmless           the same training, up to float rounding (and which masks torch draws): only reported
    changes results    another training from here on: refused, unless `--allow KEY` is given
    impossible         the checkpoint doesn't fit: start a new run

A key that is in none of the lists below changes results.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.errors import UsageError
from taskrecipe.spec.key_path import flatten_tables, is_within, label_by_name

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Spec

Kind = Literal["harmless", "changes results", "impossible"]

HARMLESS = (
    "spec_version",
    "name",
    "log",
    "report",
    "checkpoint",
    "predict",
    "track",
    "expect",
    "sweep",
    "plugins.trackers",
    "launch",
    "submit",
    "processes",
    "train.accumulate",
    "train.gradient_checkpointing",
    "train.compile",
    "evaluate.batch_size",
    "evaluate.final",
    "evaluate.predictions",
    "data.workers",
    "data.offline",
)
"""What is printed and kept, and how the same work is split up."""

IMPOSSIBLE = {
    "recipe": "another recipe has other weights",
    "model.type": "another architecture has other weights",
    "model.config": "the weights have the shapes of the saved configuration",
    "optimizer.name": "each optimizer has a state of its own kind",
    "train.ema": "the average so far was taken with the saved decay",
    "evaluate.best": "the best checkpoint so far was chosen by the saved metric",
}
"""Each key with the reason."""

ORDER_OF_ROWS = "data.streaming"
"""The one key of `[data]` that matters although the rows are the same."""

MODEL_FOLDERS = ("model.name", "model.processor")
"""Where a folder on this machine is named, its place does not matter: only its files do."""

TECHNIQUES = "techniques"
"""The names of the techniques. The settings of each are at `techniques.<name>`."""


@dataclass(frozen=True)
class Difference:
    """One value that has changed since the checkpoint."""

    key: str
    old: Any
    new: Any
    kind: Kind
    reason: str | None = None
    """Why it is impossible."""

    def __str__(self) -> str:
        return f"{self.key}: {_show(self.old)} → {_show(self.new)}"


def is_harmless(key: str) -> bool:
    """Whether a key of a spec only says what is printed and kept, or how the same work is split up."""
    return any(is_within(key, listed) for listed in HARMLESS)


def state_keys(spec: Spec) -> list[str]:
    """Return the keys of a spec that decide what the state of its optimizer and its techniques holds."""
    keys = [f"optimizer.{key}" for key in spec.optimizer.shapes_state]
    labels = label_by_name([technique.name for technique in spec.techniques])
    for label, technique in zip(labels, spec.techniques, strict=True):
        keys += [f"techniques.{label}.{key}" for key in technique.shapes_state]
    return keys


def match_by_name(saved: Sequence[str], current: Sequence[str]) -> list[int | None]:
    """Return for each current callback the position of the saved one whose state it takes over; None if it is new.

    The first of a name matches the first of that name, the second the second.
    """
    positions = {label: position for position, label in enumerate(label_by_name(saved))}
    return [positions.get(label) for label in label_by_name(current)]


def find_differences(
    saved: Mapping[str, Any], current: Mapping[str, Any], shapes_state: Collection[str] = ()
) -> list[Difference]:
    """Return everything that differs between two values of `run_identity`. A value missing on a side is None there.

    Keys are those of the spec, `rows.<split>`, `learned.<name>`, `model_files.<file>`, `plugins.<group>.<name>`,
    `versions.<package>`, `hub.data`, `hub.model` and `processes`. `shapes_state` comes from `state_keys`.
    """
    old, new = _flatten_identity(saved), _flatten_identity(current)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    changed = [key for key in changed if not _is_repeated(key, old, new)]
    kept = {kind for kind in ("rows", "model_files") if not any(is_within(key, kind) for key in changed)}
    return [_classify(key, old.get(key), new.get(key), kept, shapes_state) for key in changed]


def require_same_run(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    allow: Sequence[str] = (),
    shapes_state: Collection[str] = (),
) -> list[Difference]:
    """Raise `UsageError` with everything that prevents resuming; return the other differences.

    `allow` names keys or whole tables whose changes are intended.
    """
    found = find_differences(saved, current, shapes_state)
    unused = [key for key in allow if not any(is_within(difference.key, key) for difference in found)]
    lines = [f"  --allow {key}: nothing of that name has changed" for key in unused]
    for difference in found:
        if difference.kind == "impossible":
            lines.append(f"  {difference} is impossible: {difference.reason}; start a new run")
        elif difference.kind == "changes results" and not any(is_within(difference.key, key) for key in allow):
            lines.append(f"  {difference} changes results; if you mean it: --allow {difference.key}")
    if lines:
        raise UsageError("\n".join(["the run can't be resumed; changed since the checkpoint:", *lines]))
    return found


def _is_repeated(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether another key of the spec already names what was added or removed here."""
    in_both = key in old and key in new
    is_setting = key != TECHNIQUES and is_within(key, TECHNIQUES) and old[TECHNIQUES] != new[TECHNIQUES]
    return is_setting or (is_within(key, "plugins") and not in_both)


def _classify(key: str, old: Any, new: Any, kept: Collection[str], shapes_state: Collection[str]) -> Difference:
    """Classify a difference. `kept` says whether all `rows`, and all `model_files`, are the same."""
    reason = _find_reason(key, old, new, shapes_state)
    if reason:
        return Difference(key, old, new, "impossible", reason)
    same_source = (is_within(key, "data") or key == "hub.data") and "rows" in kept and key != ORDER_OF_ROWS
    same_files = key in MODEL_FOLDERS and "model_files" in kept and _are_paths(old, new)
    same_release = is_within(key, "versions") and _release(old) == _release(new)
    harmless = same_source or same_files or same_release or is_harmless(key)
    return Difference(key, old, new, "harmless" if harmless else "changes results")


def _are_paths(*values: Any) -> bool:
    return all(isinstance(value, str) and os.path.isabs(value) for value in values)  # noqa: PTH117 - text of a spec


def _find_reason(key: str, old: Any, new: Any, shapes_state: Collection[str]) -> str | None:
    """Return why a change is impossible; None if it is not."""
    if is_within(key, "learned") and isinstance(old, list) and isinstance(new, list):
        return "the model was trained for the saved list, which the training rows no longer give"
    if key == TECHNIQUES:
        return "other techniques have other weights and state"
    if key in shapes_state:
        owner = "optimizer" if is_within(key, "optimizer") else "technique"
        return f"{key} shapes the {owner}'s state"
    return next((reason for listed, reason in IMPOSSIBLE.items() if is_within(key, listed)), None)


def _flatten_identity(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an identity by dotted key."""
    spec = {key: value for key, value in run["spec"].items() if key not in ("callbacks", TECHNIQUES)}
    plugins = {
        group: {name: _name_plugin(plugin) for name, plugin in named.items()} for group, named in run["plugins"].items()
    }
    techniques = run["spec"]["techniques"]
    tables = {
        "callbacks": _name_entries(run["spec"]["callbacks"]),
        TECHNIQUES: _name_entries(techniques),
        "plugins": plugins,
        **{key: run[key] for key in ("rows", "learned", "processes", "versions", "hub", "model_files")},
    }
    return flatten_tables(spec) | flatten_tables(tables) | {TECHNIQUES: [entry["name"] for entry in techniques]}


def _name_entries(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a list of tables by their names."""
    return dict(zip(label_by_name([entry["name"] for entry in entries]), entries, strict=True))


def _name_plugin(plugin: Mapping[str, str]) -> str:
    """Name a plugin's code. The version of our own is among `versions`."""
    if "code" not in plugin:
        return plugin["distribution"]
    return f"{plugin['distribution']} {plugin['version']} (code {plugin['code'][:12]})"


def _release(version: Any) -> list[str]:
    """Return major and minor version. The next patch of one computes the same."""
    return str(version).split(".")[:2]


def _show(value: Any) -> str:
    return "nothing" if value is None else repr(value)
