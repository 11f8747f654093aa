"""The names in a run's folder, and what they say about it: unused, a run that can be resumed, or someone's files."""

from __future__ import annotations

import glob
import itertools
import json
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from taskrecipe.errors import UsageError
from taskrecipe.run.lock import HOLDER, LOCK
from taskrecipe.system import atomic_files

MARKER = "run.json"
"""The file that makes a folder a run's."""
SPEC = "spec.toml"
"""The resolved spec. A run is resumed from it."""
ENVIRONMENT = "environment.json"
LOG = "log.jsonl"
"""The events. Once it is there, training has begun."""
RESULTS = "results.json"
CHECKPOINTS = "checkpoints"
MODEL = "model"
PREDICTIONS = "predictions"
"""What the evaluation of the exported weights has found about each row."""
SAMPLE = "sample"
"""The tiny model of a run on sample data."""
REPORT = "report.html"
TRACK = "track"
"""Files of a tracker."""
JOB, JOB_SCRIPT = "job.json", "job.sh"
"""The job of a run that was submitted to a batch system, and its script."""

RUNS = Path("runs")
RUN_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,64}")

FETCH_LOCK = ".fetch-lock"
"""Lets one process at a time fetch a run into its folder."""

_LOCK_FILES = {LOCK, HOLDER, f"{HOLDER}.tmp", FETCH_LOCK}
_FIRST_FILES = {SPEC, ENVIRONMENT, SAMPLE, MARKER, *(f".{name}.tmp" for name in (MARKER, SPEC, ENVIRONMENT, LOG))}
"""What a run writes before it begins to train."""
_OWN_FILES = {*_FIRST_FILES, LOG, RESULTS, f".{RESULTS}.tmp", CHECKPOINTS, TRACK, JOB, JOB_SCRIPT}


def require_run_name(name: str) -> None:
    """Raise `UsageError` for a name that can't be a run's, such as one that leads out of runs/."""
    if not RUN_NAME.fullmatch(name):
        raise UsageError(f"{name!r} can't be a run's name: it takes 1 to 64 of A-Z a-z 0-9 . _ -, not dots alone")


def candidates(name: str) -> Iterator[Path]:
    """Yield runs/<name>, runs/<name>-2, runs/<name>-3, and so on."""
    yield RUNS / name
    yield from (RUNS / f"{name}-{number}" for number in itertools.count(2))


def existing(name: str) -> list[Path]:
    """List the folders of `candidates` that are there, in their order."""
    numbers = {path: _number(path, name) for path in RUNS.glob(f"{name}*")}
    return sorted((path for path in numbers if numbers[path]), key=numbers.__getitem__)


def _number(path: Path, name: str) -> int:
    """Return which run of that name a folder is: 1, or the number after its name; 0 if it is none."""
    suffix = path.name.removeprefix(name)
    return 1 if not suffix else int(suffix[1:]) if re.fullmatch(r"-[0-9]{1,9}", suffix) else 0


def resolve_out(out: Path) -> Path:
    """Make `--out` absolute, and refuse what can't be a run folder."""
    try:
        path = out.expanduser().resolve()
    except (RuntimeError, ValueError) as error:  # a loop of links, an unknown ~user, a NUL
        raise UsageError(f"{str(out)!r} can't be a run folder: {error}") from error
    if path == Path(path.anchor) or path == _home():
        raise UsageError(f"{out} can't be a run folder: name a new folder inside it")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{out} is a file; name a new folder for the run")
    return path


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def is_unused(path: Path) -> bool:
    """Whether a folder is empty, or holds only the first files of a run that never began to train."""
    names = _names(path) - _LOCK_FILES - {f".{MARKER}.tmp"}
    if (path / CHECKPOINTS).is_dir() and not _names(path / CHECKPOINTS):
        names.discard(CHECKPOINTS)  # it is made before the spec is written
    # Without a marker, a spec.toml is someone's own.
    return not names or (MARKER in names and names <= _FIRST_FILES)


def has_lock(path: Path) -> bool:
    """Whether a run has ever locked this folder."""
    return (path / LOCK).exists()


def holds_run(path: Path) -> bool:
    """Whether a folder is a run's, even if its marker was lost."""
    return (path / MARKER).exists() or next((path / CHECKPOINTS).glob("step-*"), None) is not None


def has_results(path: Path) -> bool:
    """Whether a folder holds checkpoints, a model, or files that are not a run's."""
    checkpoints = path / CHECKPOINTS
    return bool(_names(path) - _LOCK_FILES - _OWN_FILES or (checkpoints.is_dir() and _names(checkpoints)))


def taken(path: Path) -> UsageError:
    """Make the error for a folder that a new run can't use."""
    if holds_run(path):
        return UsageError(
            f"{path} already holds a run: continue it with `recipe resume {path}` or --resume, or name a new folder"
        )
    return UsageError(f"{path} is not empty and not a run; name a new folder, or an empty one")


def how_to_repair(path: Path) -> str:
    """Return how to write the marker of a run whose checkpoints are there; nothing where there are none."""
    for manifest in sorted((path / CHECKPOINTS).glob("step-*/MANIFEST.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):
            run_id = str(json.loads(manifest.read_bytes())["run_id"])
            marker = json.dumps({"format": 1, "id": run_id})
            return f". Its checkpoints are there: write {marker} into {path / MARKER}, then resume"
    return ""


def remove_first_files(path: Path) -> None:
    """Remove what an earlier run that never began to train left in its folder."""
    _remove(path, _FIRST_FILES)


def remove_all_files(path: Path) -> None:
    """Remove everything of a run, its lock included."""
    _remove(path, _OWN_FILES | _LOCK_FILES)


def remove_if_empty(path: Path) -> None:
    """Remove a folder unless something is in it."""
    with suppress(OSError):
        path.rmdir()


def _remove(path: Path, names: set[str]) -> None:
    for name in names & _names(path):
        atomic_files.remove(path / name)


def _names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def refuse_special_files(path: Path) -> None:
    """Raise if a named pipe, socket or device is among a run's files: reading it could wait forever."""
    for pattern in ("*", f"{CHECKPOINTS}/*/*", f"{MODEL}/*"):
        # Not Path.glob: it raises if the run, which may be going on, removes a checkpoint while it is listed.
        for name in glob.iglob(pattern, root_dir=path, include_hidden=True):  # noqa: PTH207
            if _is_special(found := path / name):
                raise UsageError(f"{found} is not a regular file; remove it, or restore the file that was there")


def _is_special(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder. One look: the run may remove it meanwhile."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
