"""Every state in which a kill can leave a run's folder: copied before each change of a file in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from taskrecipe import Run, resume, train

CHANGES = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}


def crash_states(spec: Path, run: Path) -> list[Path]:
    """Train a spec in a process of its own, or resume it, and return a copy of each state of its folder, in order."""
    copies = run.with_name(f"{run.name}-states")
    copies.mkdir()
    command = [sys.executable, "-m", "tests.support.crash_states", str(spec), str(run), str(copies)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(copies.iterdir(), key=lambda path: int(path.name))


def go_on(spec: Path, run: Path) -> Run:
    """Do what a user does after a kill: resume the run, or start it again where none has begun."""
    return resume(run, quiet=True) if (run / "spec.toml").exists() else train(spec, out=run, quiet=True)


class Watch:
    """Copies a folder before a change of it, unless it is as it was at the last one."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.folder, self.copies = folder, copies
        self.seen: set[Any] = set()
        self.lock, self.inside = threading.Lock(), threading.local()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or getattr(self.inside, "now", False) or not self._is_about_folder(arguments[0]):
            return
        self.inside.now = True
        try:
            with self.lock:
                self._copy()
        finally:
            self.inside.now = False

    def _is_about_folder(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(str(self.folder))

    def _copy(self) -> None:
        if not self.folder.is_dir():
            return
        copy = self.copies / str(len(self.seen))
        try:
            files = [(str(path), path.lstat()) for path in sorted(self.folder.rglob("*"))]
            state = tuple((name, about.st_size, about.st_ino) for name, about in files)
            if state not in self.seen:
                shutil.copytree(self.folder, copy)
                self.seen.add(state)
        except (FileNotFoundError, shutil.Error):  # another thread removed a file meanwhile: no state to look at
            shutil.rmtree(copy, ignore_errors=True)


if __name__ == "__main__":
    spec, folder, copies = map(Path, sys.argv[1:])
    sys.addaudithook(Watch(folder, copies))
    go_on(spec, folder)
