"""What commands import: nothing heavy, and nothing under two names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "datasets", "accelerate", "evaluate", "optuna")
LIGHT_COMMANDS = [
    "--help",
    "--version",
    "run --help",
    "predict --help",
    "sweep --help",
    "repeat --help",
    "replay --help",
    "validate sweeps",
    "explain sweeps/mrpc.toml sweep.trials",
    "validate specs",
    "validate specs --format sarif",
    "list",
    "show glue",
    "show adamw",
    "show tensorboard",
    "plugins",
    "schema",
    "new glue {tmp}/new.toml",
    "new glue {tmp}/own.toml --data tests/support/tickets.csv",
    "new-plugin mine {tmp}/plugin",
    "new-plugin mine {tmp}/technique --kind technique",
    "explain specs/mrpc.toml train.learning_rate",
    "migrate specs/mrpc.toml",
    "diff specs/mrpc.toml specs/mrpc.toml",
    "runs",
    "runs --json --sort best",
    "guide",
    "guide own-recipe",
]


@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_commands_that_train_nothing_leave_heavy_packages_out(command, tmp_path):
    script = f"""
import sys
from taskrecipe.cli import main
try:
    main()
except SystemExit as exit_:
    assert not exit_.code, exit_.code
sys.exit(",".join(name for name in {HEAVY} if name in sys.modules) or None)
"""
    done = python("-c", script, *command.format(tmp=tmp_path).split(), env={"TASKRECIPE_DISABLE_PLUGINS": "1"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "right"), [("core", "taskrecipe"), ("recipes", "taskrecipe.recipes"), ("contrib", "taskrecipe.contrib")]
)
def test_a_folder_can_t_be_imported_by_its_bare_name(name, right):
    done = python("-c", f"import {name}")
    assert done.returncode == 1
    assert f"ImportError: import this package as '{right}', not as '{name}'" in done.stderr


def python(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **(env or {})}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=whole, capture_output=True, text=True, check=False
    )
