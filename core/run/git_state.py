"""Which commit a run was started from, found out without running a program that the repository names.

`git status` runs the filters and the file monitor that a repository's own settings name. A spec may come from a
repository that nobody has looked through, so only commands are used here that read refs and the index, and files are
compared with the index by their time, size and content. A file that a filter would change before it is committed,
such as one of Git LFS, counts as changed once its time has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIT_SECONDS = 5.0
"""Time limit of each git command."""

_SKIP_WORKTREE = 1 << 30
"""Flag of a file that a sparse checkout leaves out."""
_LISTED = re.compile(
    rb"(\d+) ([0-9a-f]+) \d\t([^\0]*)\0"  # mode, blob, stage, path
    rb"  ctime: .*\n  mtime: (\d+):(\d+)\n  dev: .*\n  uid: .*\n  size: (\d+)\tflags: ([0-9a-f]+)\n"
)
_LINK, _SUBMODULE = "120000", "160000"


def describe_git(folder: Path, files: Iterable[Path] = ()) -> dict[str, Any] | None:
    """Return commit, branch, remote and whether anything has changed since; None outside a repository, or without git.

    `dirty` is true if a tracked file differs from the commit, or if one of `files` (the spec, the data) is not tracked.
    """
    head = _git(folder, "rev-parse", "--show-toplevel", "--git-path", "index", "HEAD", "--abbrev-ref", "HEAD")
    lines = os.fsdecode(head).rstrip("\n").split("\n") if head else []
    if len(lines) != 4:
        return None
    root, index, commit, branch = lines
    remote = _git(folder, "config", "--get", "remote.origin.url")
    return {
        "commit": commit,
        "branch": None if branch == "HEAD" else branch,
        "remote": os.fsdecode(remote).strip() if remote else None,
        "dirty": _is_dirty(Path(root), folder / index, files),
    }


def _is_dirty(root: Path, index: Path, files: Iterable[Path]) -> bool | None:
    staged = _git(root, "diff-index", "--cached", "--raw", "--no-ext-diff", "--ignore-submodules", "HEAD")
    listed = _git(root, "ls-files", "-s", "-z", "--debug")
    if staged is None or listed is None:
        return None
    entries = list(_parse_index(listed))
    if staged or _are_untracked(root, {entry.path for entry in entries}, files):
        return True
    try:
        index_time = index.stat().st_mtime_ns
        return any(_has_changed(root, entry, index_time) for entry in entries)
    except OSError:
        return None


@dataclass(frozen=True)
class _Entry:
    """What the index knows of a file: the blob it was added as, and what `stat` said then."""

    path: str
    mode: str
    blob: str
    mtime_ns: int
    size: int
    flags: int


def _parse_index(listed: bytes) -> Iterator[_Entry]:
    """Read the output of `git ls-files -s -z --debug`."""
    for found in _LISTED.finditer(listed):
        mode, blob, path, seconds, nanoseconds, size, flags = found.groups()
        mtime_ns = int(seconds) * 10**9 + int(nanoseconds)
        yield _Entry(os.fsdecode(path), mode.decode(), blob.decode(), mtime_ns, int(size), int(flags, 16))


def _has_changed(root: Path, entry: _Entry, index_time: int) -> bool:
    """Compare a file with what was committed. Whether it may be executed does not count."""
    if entry.mode == _SUBMODULE or entry.flags & _SKIP_WORKTREE:
        return False
    path = root / entry.path
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    if stat.S_ISLNK(found.st_mode) != (entry.mode == _LINK) or stat.S_ISDIR(found.st_mode):
        return True
    # A file that was written after the index may have changed within one tick of the clock.
    if (found.st_mtime_ns, found.st_size) == (entry.mtime_ns, entry.size) and found.st_mtime_ns < index_time:
        return False
    return _hash_blob(path, found.st_size, entry) != entry.blob


def _hash_blob(path: Path, size: int, entry: _Entry) -> str:
    """Return the name that git gives to a file's content as it is."""
    digest = hashlib.new("sha1" if len(entry.blob) == 40 else "sha256", usedforsecurity=False)
    if entry.mode == _LINK:
        target = os.fsencode(path.readlink())
        digest.update(b"blob %d\0" % len(target) + target)
        return digest.hexdigest()
    digest.update(b"blob %d\0" % size)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _are_untracked(root: Path, tracked: set[str], files: Iterable[Path]) -> bool:
    """Whether any of `files`, or any file in those that are folders, is in the repository but not tracked."""
    root = root.resolve()
    every = (path for given in files for path in _walk(Path(given).resolve()))
    return any(path.is_relative_to(root) and path.relative_to(root).as_posix() not in tracked for path in every)


def _walk(path: Path) -> Iterator[Path]:
    return (found for found in path.rglob("*") if found.is_file()) if path.is_dir() else iter([path])


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Run a git command that needs no more than refs and index; None if it fails."""
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", *arguments]
    # Variables of a surrounding git command name another repository. A partial clone must not fetch what it lacks.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none"}
    try:
        result = subprocess.run(
            command, env=kept | quiet, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout
