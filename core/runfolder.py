"""The folder of a run: what is in it, who may write there, and how it is found again."""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from taskrecipe.core import durable
from taskrecipe.core.errors import UsageError
from taskrecipe.core.folderlock import LOCK, FolderLock
from taskrecipe.core.redaction import redact, to_json
from taskrecipe.core.runlog import RunLog

MARKER = "run.json"
"""The file that makes a folder a run's."""
SPEC = "spec.toml"
"""The resolved spec, which a run is resumed by."""
ENVIRONMENT = "environment.json"
LOG = "log.jsonl"
"""What happened; once it is there, training has begun."""
RUNS = Path("runs")
_FIRST_FILES = {LOCK, *(name for first in (MARKER, SPEC, ENVIRONMENT) for name in (first, f".{first}.tmp"))}
NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,64}")


class RunFolder:
    """`spec.toml`, `environment.json`, `log.jsonl`, `results.json`, `checkpoints/` and `model/` of one run.

    Every file appears whole or not at all, and none has a secret in it. As a context, it gives its lock back.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.run_id = path, run_id
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self._log = RunLog(path / LOG)
        self._lock = FolderLock(path)

    @classmethod
    def create(cls, name: str, out: Path | None = None) -> RunFolder:
        """Make a new run folder and lock it: `out`, or runs/<name>, with a number where that is taken."""
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} can't be a run's name: it takes 1 to 64 of A-Z a-z 0-9 . _ -, not dots alone")
        try:
            folder = cls(_claim(name) if out is None else _claim_exactly(out), secrets.token_hex(8))
            folder.lock()
        except OSError as error:
            raise UsageError(f"can't make the run folder {out or RUNS / name}: {error.strerror or error}") from error
        if _names(folder.path):  # of a run that was started there at the same moment, and has ended
            folder.close()
            raise _taken(folder.path)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        folder.write_json(MARKER, {"format": 1, "id": folder.run_id, "created": created})
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run folder at `path`, to be read; `lock` it before anything is written."""
        try:
            marker = json.loads((path / MARKER).read_bytes())
            return cls(path, str(marker["id"]))
        except OSError as error:
            raise UsageError(f"{path} is not the folder of a run: it has no {MARKER} ({error.strerror})") from error
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{path} can't be read as the folder of a run: its {MARKER} is damaged") from error

    @classmethod
    def latest(cls, name: str, out: Path | None = None) -> RunFolder | None:
        """The run in `out`, or the newest called `name` in runs/; None where there is none."""
        found = [out] if out is not None else sorted(RUNS.glob(f"{name}*"), key=lambda path: _number(path, name))
        runs = [path for path in found if (path / MARKER).exists() and (out is not None or _number(path, name))]
        return cls.open(runs[-1]) if runs else None

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.path.name

    def lock(self) -> None:
        """Make sure that no other run writes here; raises `UsageError` that says which one does."""
        self._lock.acquire()
        if self._former_model.exists() and not self.model.exists():  # killed while the one took the other's place
            self._former_model.rename(self.model)

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Files ------------------------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> None:
        """Put a text file in place, without secrets."""
        durable.replace(self.path / name, redact(text).encode(errors="backslashreplace"))

    def write_json(self, name: str, value: Any) -> None:
        """Put a JSON file in place, without secrets; what is not finite becomes null."""
        text = to_json(value, indent=2) + "\n"
        durable.replace(self.path / name, text.encode(errors="backslashreplace"))

    def read_json(self, name: str) -> Any:
        """The content of a JSON file; raises `UsageError` where there is none."""
        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path / name} can't be read: {error}") from error

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to log.jsonl."""
        self._log.append(record)

    def read_log(self) -> Iterator[dict[str, Any]]:
        """Every record of log.jsonl."""
        return self._log.read()

    def drop_log_after(self, step: int) -> None:
        """Take the lines after `step` updates out of log.jsonl, since a resumed run writes them again."""
        self._log.drop_after(step)

    @contextmanager
    def replacing_model(self) -> Iterator[Path]:
        """A folder to export a model into; it takes the place of `model/` when it is complete."""
        temporary = self.path / ".tmp-model"
        durable.remove(temporary)
        with durable.naming_full_disk(self.model), durable.removed_on_failure(temporary):
            temporary.mkdir()
            yield temporary
            durable.sync_tree(temporary)
        durable.remove(self._former_model)
        if self.model.exists():
            self.model.rename(self._former_model)
        temporary.rename(self.model)
        durable.sync(self.path)
        durable.remove(self._former_model)

    @property
    def _former_model(self) -> Path:
        return self.path / ".former-model"


def _claim(name: str) -> Path:
    """A folder that this call has made, so that no other start can have it."""
    RUNS.mkdir(parents=True, exist_ok=True)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(RUNS / free for free in names if _made(RUNS / free))


def _number(path: Path, name: str) -> int:
    """Which run of that name a folder is: 1, or the number behind its name; 0 if it is none."""
    suffix = path.name.removeprefix(name)
    return 1 if not suffix else int(suffix[1:]) if re.fullmatch(r"-[0-9]{1,9}", suffix) else 0


def _made(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def _claim_exactly(out: Path) -> Path:
    path = _resolved(out)
    if path == Path(path.anchor) or path == _home():
        raise UsageError(f"{out} can't be a run folder: name a new folder inside it")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{out} is a file; name a new folder for the run")
    path.mkdir(parents=True, exist_ok=True)
    if _names(path) and not (path / LOCK).exists():  # who has the lock is asked for it first
        raise _taken(path)
    return path


def _names(path: Path) -> set[str]:
    """What is in a folder, besides what a run leaves there whose training never began."""
    names = {entry.name for entry in path.iterdir()}
    return names if LOG in names else names - _FIRST_FILES


def _taken(path: Path) -> UsageError:
    if (path / MARKER).exists():
        return UsageError(
            f"{path} holds a run already; go on with it by `recipe resume {path}` or --resume, or name a new folder"
        )
    return UsageError(f"{path} is not empty and not a run; name a new folder, or an empty one")


def _resolved(out: Path) -> Path:
    try:
        return out.expanduser().resolve()
    except (RuntimeError, ValueError) as error:  # a loop of links, an unknown ~user, a NUL
        raise UsageError(f"{str(out)!r} can't be a run folder: {error}") from error


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None
