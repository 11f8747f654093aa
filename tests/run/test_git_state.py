from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from taskrecipe.run.git_state import describe_git


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=name", "-c", "user.email=address"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _state(folder: Path, *files: Path) -> dict[str, Any]:
    state = describe_git(folder, files)
    assert state is not None
    return state


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "specs").mkdir(parents=True)
    (folder / "specs" / "a.toml").write_text("a = 1\n")
    (folder / "größe.txt").write_text("b\n")
    (folder / "link").symlink_to("größe.txt")
    _git(folder, "init", "-q", "-b", "trunk")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_clean_repository(repository: Path):
    expected = {"commit": _git(repository, "rev-parse", "HEAD"), "branch": "trunk", "remote": None, "dirty": False}
    assert describe_git(repository) == expected
    assert describe_git(repository / "specs") == expected
    _git(repository, "remote", "add", "origin", "https://host/x.git")
    _git(repository, "checkout", "-q", "--detach")
    assert describe_git(repository) == expected | {"branch": None, "remote": "https://host/x.git"}


def _change_text(folder: Path) -> None:
    (folder / "specs" / "a.toml").write_text("a = 2\n")  # as long as before


def _change_at_the_old_time(folder: Path) -> None:
    path = folder / "specs" / "a.toml"
    before = path.stat()
    path.write_text("a = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    index = folder / ".git" / "index"
    os.utime(index, ns=(before.st_mtime_ns, before.st_mtime_ns))  # as if all that took one tick of the clock


def _stage(folder: Path) -> None:
    _change_text(folder)
    _git(folder, "add", ".")


def _add(folder: Path) -> None:
    (folder / "new").touch()
    _git(folder, "add", ".")


def _replace_link(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").write_text("größe.txt")


def _turn_link(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").symlink_to("specs/a.toml")


def _delete(folder: Path) -> None:
    shutil.rmtree(folder / "specs")


CHANGES = [_change_text, _change_at_the_old_time, _stage, _add, _replace_link, _turn_link, _delete]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(repository: Path, change: Any):
    change(repository)
    assert _state(repository)["dirty"] is True


def test_a_file_that_was_only_touched_has_not_changed(repository: Path):
    for name in ("specs/a.toml", "größe.txt"):
        os.utime(repository / name, ns=(0, 10**18))
    assert _state(repository)["dirty"] is False


def test_a_repository_of_sha256_names(tmp_path: Path):
    _git(tmp_path, "init", "-q", "--object-format=sha256")
    (tmp_path / "a").write_text("a")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    os.utime(tmp_path / "a", ns=(0, 10**18))
    assert _state(tmp_path)["dirty"] is False


def test_a_file_that_a_sparse_checkout_leaves_out_has_not_changed(repository: Path):
    _git(repository, "update-index", "--skip-worktree", "specs/a.toml")
    (repository / "specs" / "a.toml").unlink()
    assert _state(repository)["dirty"] is False


def test_only_those_untracked_files_count_that_matter(repository: Path, tmp_path: Path):
    (repository / "data").mkdir()
    (repository / "data" / "rows.csv").touch()
    (tmp_path / "elsewhere.csv").touch()
    assert _state(repository)["dirty"] is False
    assert _state(repository, repository / "specs" / "a.toml", tmp_path / "elsewhere.csv")["dirty"] is False
    assert _state(repository, repository / "data" / "rows.csv")["dirty"] is True
    assert _state(repository, repository / "data")["dirty"] is True


def test_a_repository_can_not_have_its_own_programs_run(tmp_path: Path):
    folder, program, marker = tmp_path / "repository", tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    folder.mkdir()
    (folder / ".gitattributes").write_text("* filter=named diff=named\n")
    (folder / "a.toml").write_text("a = 1\n")
    _git(folder, "init", "-q")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    for key in ("core.fsmonitor", "filter.named.clean", "filter.named.process", "diff.named.command", "diff.external"):
        _git(folder, "config", key, str(program))
    (folder / "a.toml").write_text("a = 1\n")
    os.utime(folder / "a.toml", ns=(0, 10**18))
    assert _state(folder)["dirty"] is False
    (folder / "a.toml").write_text("a = 2\n")
    assert _state(folder)["dirty"] is True
    assert not marker.exists()
    subprocess.run(["git", "-C", str(folder), "status"], capture_output=True)
    assert marker.exists(), "git itself would run it"


def test_a_folder_outside_a_repository_has_no_git_state(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert describe_git(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert describe_git(repository) is None


def test_a_repository_without_a_commit_has_no_git_state(tmp_path: Path):
    _git(tmp_path, "init", "-q")
    assert describe_git(tmp_path) is None


def test_a_surrounding_git_command_does_not_change_the_answer(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other.git"))
    assert _state(repository)["dirty"] is False


def test_a_git_that_hangs_does_not_hold_up_the_run(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("taskrecipe.run.git_state.GIT_SECONDS", 0.2)
    start = time.perf_counter()
    assert describe_git(repository) is None
    assert time.perf_counter() - start < 10
