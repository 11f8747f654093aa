"""The folder of a run: which files it holds, which process may write there, and how it is found again."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taskrecipe.errors import UsageError
from taskrecipe.remote.urls import is_url, restore_url
from taskrecipe.run import folder_names
from taskrecipe.run.folder_names import CHECKPOINTS, LOG, MARKER, MODEL, RUNS
from taskrecipe.run.lock import FolderLock
from taskrecipe.run.log import RunLog
from taskrecipe.system import atomic_files
from taskrecipe.system.secrets import redact_spec, to_json


class RunFolder:
    """`spec.toml`, `environment.json`, `log.jsonl`, `results.json`, `checkpoints/` and `model/` of one run.

    Every file appears whole or not at all, and none contains a secret. Leaving its `with` block frees its lock.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.run_id = path, run_id
        self.checkpoints = path / CHECKPOINTS
        self.model = path / MODEL
        self._log = RunLog(path / LOG)
        self._lock = FolderLock(path)
        self._is_new, self._made_directory = False, False

    @classmethod
    def create(cls, name: str, out: Path | None = None) -> Self:
        """Make a new run folder and lock it: `out`, or runs/<name>, or runs/<name>-2 where that holds a run, etc.

        A folder that was left by a run which ended before training began is used again.
        """
        folder_names.require_run_name(name)
        try:
            return cls._create_next(name) if out is None else cls._create_at(folder_names.resolve_out(out))
        except OSError as error:
            raise UsageError(f"can't make the run folder {out or RUNS / name}: {error.strerror or error}") from error

    @classmethod
    def _create_next(cls, name: str) -> Self:
        RUNS.mkdir(parents=True, exist_ok=True)
        for path in folder_names.candidates(name):
            if not path.exists() or (path.is_dir() and folder_names.is_unused(path)):
                try:
                    return cls._create_at(path)
                except UsageError:  # another run took it at the same moment
                    continue
        raise AssertionError("there is always a next number")

    @classmethod
    def _create_at(cls, path: Path) -> Self:
        folder = cls(path, secrets.token_hex(8))
        folder._made_directory = not path.exists() or (path / MARKER).exists()
        path.mkdir(parents=True, exist_ok=True)
        if not folder_names.is_unused(path) and not folder_names.has_lock(path):
            raise folder_names.taken(path)
        folder.lock()  # before the look that counts; and a run that is going on is named by its process
        if not folder_names.is_unused(path):
            folder.close()
            raise folder_names.taken(path)
        folder_names.remove_first_files(path)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        folder.write_json(MARKER, {"format": 1, "id": folder.run_id, "created": created})
        folder._is_new = True
        return folder

    @classmethod
    def adopt(cls, path: Path, marker: Mapping[str, Any]) -> Self:
        """Make or open the folder of a run that comes from elsewhere, and lock it. Another run's folder is refused."""
        path = folder_names.resolve_out(path)
        path.mkdir(parents=True, exist_ok=True)
        if not folder_names.is_unused(path) and not _is_of(path, str(marker["id"])):
            raise folder_names.taken(path)
        folder = cls(path, str(marker["id"]))
        folder.lock()
        if not _is_of(path, folder.run_id):
            folder_names.remove_first_files(path)
            folder._is_new = folder._made_directory = True
        folder.write_json(MARKER, {key: value for key, value in marker.items() if key != "launchers"})
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the run folder at `path` for reading. Call `lock` before writing anything."""
        if is_url(path):
            url = restore_url(path)
            raise UsageError(f"{url} is not on this machine: copy the run with `recipe fetch {url}`, then use the copy")
        folder_names.refuse_special_files(path)
        try:
            marker = json.loads((path / MARKER).read_bytes())
            return cls(path, str(marker["id"]))
        except OSError as error:
            missing = f"{path} is not the folder of a run: it has no {MARKER} ({error.strerror})"
            raise UsageError(missing + folder_names.how_to_repair(path)) from error
        except (ValueError, LookupError, TypeError) as error:
            damaged = f"{path} can't be read as the folder of a run: its {MARKER} is damaged"
            raise UsageError(damaged + folder_names.how_to_repair(path)) from error

    @classmethod
    def latest(cls, name: str, out: Path | None = None) -> Self | None:
        """Return the run in `out`, or the newest run called `name` in runs/; None where there is none."""
        found = [out] if out is not None else folder_names.existing(name)
        runs = [path for path in found if folder_names.holds_run(path)]
        return cls.open(runs[-1]) if runs else None

    @classmethod
    def of_launchers(cls, name: str, launchers: Sequence[str], out: Path | None = None) -> Self | None:
        """Return the run that one of these launchers has started before, in `out` or called `name`; None if none has.

        A launcher that starts its processes again after a failure runs the same command: that goes on with its run.
        """
        for path in [out] if out is not None else reversed(folder_names.existing(name)):
            with suppress(OSError, ValueError, AttributeError):
                if set(json.loads((path / MARKER).read_bytes()).get("launchers", ())) & set(launchers):
                    return cls.open(path)
        return None

    def record_launchers(self, launchers: Sequence[str]) -> None:
        """Record which launchers start this run again, where they do."""
        marker = self.read_json(MARKER)
        known = set(marker.get("launchers", ()))
        if not known >= set(launchers):
            self.write_json(MARKER, {**marker, "launchers": sorted(known | set(launchers))})

    def record_mirror(self, url: str) -> None:
        """Record where the copy of this run is, so that it goes on there when the run is resumed."""
        marker = self.read_json(MARKER)
        if marker.get("mirror") != url:
            self.write_json(MARKER, {**marker, "mirror": url})

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.path.name

    def lock(self) -> None:
        """Take the folder's lock, or raise `UsageError` that names the process that holds it."""
        self._lock.acquire()
        if self._former_model.exists() and not self.model.exists():  # killed between the two renames of an export
            self._former_model.rename(self.model)

    def close(self) -> None:
        """Free the lock."""
        self._lock.release()

    def discard(self) -> bool:
        """Remove the folder of a run that ended before its first update; return whether it was removed.

        Nothing is removed from a folder that this object did not create, or that holds updates, checkpoints, a model
        or any file that is not the run's.
        """
        if not self._is_new or not self._lock.is_held or self._has_updates() or folder_names.has_results(self.path):
            return False
        self._is_new = False
        folder_names.remove_all_files(self.path)  # the lock too: who waits for it then sees that its file is gone
        self.close()
        if self._made_directory:
            folder_names.remove_if_empty(self.path)
        return True

    def _has_updates(self) -> bool:
        return any(record.get("step") != 0 for record in self._log.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Files ------------------------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in one step, without secrets."""
        atomic_files.replace(self.path / name, redact_spec(text).encode(errors="backslashreplace"))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file in one step, without secrets. Numbers that are not finite become null."""
        text = to_json(value, indent=2) + "\n"
        atomic_files.replace(self.path / name, text.encode(errors="backslashreplace"))

    def read_json(self, name: str) -> Any:
        """Read a JSON file, or raise `UsageError` where it is missing or damaged."""
        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path / name} can't be read: {error}") from error

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to log.jsonl."""
        self._log.append(record)

    def read_log(self) -> Iterator[dict[str, Any]]:
        """Yield every record of log.jsonl that can be read."""
        return self._log.read()

    def count_damaged_log_lines(self) -> int:
        """Count the lines of log.jsonl that can't be read."""
        return self._log.count_damaged()

    def drop_log_after(self, step: int) -> int:
        """Remove from log.jsonl what a resumed run writes again; return how many damaged lines were removed too."""
        return self._log.drop_after(step)

    @contextmanager
    def replacing_model(self) -> Iterator[Path]:
        """Yield a folder to export a model into. It replaces `model/` when the block ends without an error."""
        temporary = self.path / ".tmp-model"
        atomic_files.remove(temporary)
        with atomic_files.explain_full_disk(self.model), atomic_files.remove_on_failure(temporary):
            temporary.mkdir()
            yield temporary
            atomic_files.sync_tree(temporary)
        atomic_files.remove(self._former_model)
        if self.model.exists():
            self.model.rename(self._former_model)
        temporary.rename(self.model)
        atomic_files.sync(self.path)
        atomic_files.remove(self._former_model)

    @property
    def _former_model(self) -> Path:
        return self.path / ".former-model"


def _is_of(path: Path, run_id: str) -> bool:
    """Whether a folder is that run's."""
    try:
        return bool(json.loads((path / MARKER).read_bytes())["id"] == run_id)
    except (OSError, ValueError, LookupError, TypeError):
        return False
