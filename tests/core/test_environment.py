from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch

from taskrecipe.core.environment import describe


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=name", "-c", "user.email=address"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "specs").mkdir(parents=True)
    (folder / "specs" / "a.toml").write_text("a = 1\n")
    _git(folder, "init", "-q")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def test_it_names_what_the_run_is_made_with(tmp_path: Path):
    told = describe(tmp_path, packages=["pytest", "no-such-package"])
    assert told["python"] == platform.python_version()
    assert told["packages"]["torch"] == torch.__version__
    assert {"taskrecipe", "transformers", "pytest"} <= told["packages"].keys()
    assert "no-such-package" not in told["packages"]
    assert told["hardware"]["cores"] == len(os.sched_getaffinity(0))
    assert told["hardware"]["memory_bytes"] > 2**28
    assert json.loads(json.dumps(told)) == told


def test_it_tells_the_commit_and_whether_files_have_changed_since(repository: Path):
    clean = describe(repository / "specs")["git"]
    assert clean == {"commit": _git(repository, "rev-parse", "HEAD"), "dirty": False, "remote": None}
    (repository / "untracked.txt").touch()
    assert describe(repository)["git"]["dirty"] is False
    (repository / "specs" / "a.toml").write_text("a = 2\n")
    assert describe(repository)["git"]["dirty"] is True


def test_a_folder_outside_a_repository_has_no_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert describe(tmp_path)["git"] is None
    monkeypatch.setenv("PATH", "")
    assert describe(tmp_path)["git"] is None


def test_a_git_that_hangs_does_not(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("taskrecipe.core.environment.GIT_SECONDS", 0.2)
    start = time.perf_counter()
    assert describe(repository)["git"] is None
    assert time.perf_counter() - start < 10


def test_a_repository_can_not_have_its_own_programs_run(repository: Path, tmp_path: Path):
    program, marker = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    _git(repository, "config", "core.fsmonitor", str(program))
    _git(repository, "status")
    assert marker.exists(), "git itself would run it"
    marker.unlink()
    assert describe(repository)["git"]["dirty"] is False
    assert not marker.exists()


def test_it_names_neither_machine_nor_people(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "gethostname", lambda: pytest.fail("asked for the machine's name"))
    monkeypatch.setattr(getpass, "getuser", lambda: pytest.fail("asked for the user's name"))
    text = json.dumps(describe(repository))
    assert platform.node() not in text
    assert str(repository) not in text
    assert str(Path.home()) not in text
