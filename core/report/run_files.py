"""The files of a run that a report is made of. Each may be missing or damaged: a run may still be going on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from taskrecipe.errors import DamagedCheckpointError
from taskrecipe.report.evidence import Evidence, read_evidence
from taskrecipe.report.history import History, read_history
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import CHECKPOINTS, ENVIRONMENT, RESULTS, SPEC
from taskrecipe.run.lock import find_live_holder

_HEADER = re.compile(r"\[+([^\[\]]+)\]+")


@dataclass(frozen=True)
class SpecValue:
    """One value of the resolved spec, as TOML, and where it came from."""

    key: str
    value: str
    origin: str

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.origin == "default"


@dataclass(frozen=True)
class RunFiles:
    """What the folder of a run says about it."""

    folder: Path
    run_id: str
    spec: list[SpecValue]
    environment: dict[str, Any]
    results: dict[str, Any]
    history: History
    evidence: list[Evidence]
    notes: list[str]
    """What could not be read."""
    label: str = ""
    """Its name in the report, where the folder's name is not enough."""

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.label or self.folder.resolve().name

    @cached_property
    def status(self) -> str:
        """Return running, finished, stopped, failed, or interrupted where the process is gone without an end."""
        end = self.history.end
        if end is not None:  # the log forgets the end of a session when the run is resumed
            return str(self.results.get("status") or end.get("status"))
        return "running" if find_live_holder(self.folder) else "interrupted"

    def value(self, key: str) -> str | None:
        """Return a value of the spec as text, without quotes; None if the spec doesn't have it."""
        found = next((one.value for one in self.spec if one.key == key), None)
        return found.strip('"') if found is not None else None


def read_run(folder: Path) -> RunFiles:
    """Read the files of a run. Raise `UsageError` if the folder is not a run's."""
    opened, notes = RunFolder.open(folder), []
    if damaged := opened.count_damaged_log_lines():
        notes.append(f"{damaged} lines of log.jsonl can't be read and are left out")
    evidence, problems = read_evidence(folder / "predictions")
    return RunFiles(
        folder=folder,
        run_id=opened.run_id,
        spec=_read_spec(folder / SPEC),
        environment=_read_json(folder / ENVIRONMENT, notes),
        results=_read_json(folder / RESULTS, notes),
        history=read_history(opened.read_log()),
        evidence=evidence,
        notes=[*notes, *problems],
    )


def read_weights(folder: Path) -> dict[str, str]:
    """Return the sha256 of each checkpoint's weights, from its manifest: the files themselves are not read."""
    from taskrecipe.checkpoints.manifest import read_manifest

    digests = {}
    for path in sorted((folder / CHECKPOINTS).glob("step-*"), key=_step):
        try:
            files = read_manifest(path).files
        except DamagedCheckpointError as error:
            if path.exists():  # else the run, which is going on, has just removed it
                digests[path.name] = str(error)
            continue
        if "model.safetensors" in files:
            digests[path.name] = files["model.safetensors"].sha256
    return digests


def differing_keys(runs: Sequence[RunFiles]) -> list[str]:
    """Return the keys whose values are not the same in all runs' specs, in the order of the specs."""
    tables = [{one.key: one.value for one in run.spec} for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({table.get(key) for table in tables}) > 1]


def _step(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else 0


def _read_json(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        notes.append(f"{path.name} can't be read")
        return {}
    return content


def _read_spec(path: Path) -> list[SpecValue]:
    """Read a resolved spec: one value a line, with its origin in a comment."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    values, table, counts = [], "", dict[str, int]()
    for line in lines:
        if header := _HEADER.fullmatch(line.strip()):
            table = header[1]
            if line.startswith("[["):  # several tables of one name are numbered
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}.{counts[table]}"
        elif " = " in line:
            key, _, rest = line.partition(" = ")
            value, _, origin = rest.rpartition(" # ")
            values.append(SpecValue(f"{table}.{key}" if table else key, value or rest, origin if value else ""))
    return values
