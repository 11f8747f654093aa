from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
import torch

from taskrecipe.run.environment import describe_environment


def test_it_names_what_the_run_is_made_with(tmp_path: Path):
    found = describe_environment(tmp_path, packages=["pytest", "no-such-package"], processes=2)
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == torch.__version__
    assert {"taskrecipe", "transformers", "pytest"} <= found["packages"].keys()
    assert "no-such-package" not in found["packages"]
    assert found["processes"] == 2
    assert found["git"] is None
    assert json.loads(json.dumps(found)) == found


def test_it_says_who_started_the_run_when_and_where(tmp_path: Path):
    found = describe_environment(tmp_path)
    assert found["user"] == getpass.getuser()
    assert abs(datetime.fromisoformat(found["started"]) - datetime.now(UTC)) < timedelta(minutes=1)
    machine = found["machine"]
    assert machine["host"] == socket.gethostname()
    assert machine["platform"].startswith(platform.system())
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["memory_bytes"] == psutil.virtual_memory().total
    assert machine["accelerators"] == [] or all(one["name"] for one in machine["accelerators"])


def test_a_user_without_a_name_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unknown() -> str:
        raise KeyError("uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert describe_environment(tmp_path)["user"] is None


def test_the_command_line_is_kept_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "canary-token")
    monkeypatch.setattr(sys, "argv", ["recipe", "run", "a.toml", "--set", "name=canary-token", "https://me:pw@host/"])
    command = describe_environment(tmp_path)["command"]
    assert command == ["recipe", "run", "a.toml", "--set", "name=[redacted]", "https://[redacted]@host/"]
