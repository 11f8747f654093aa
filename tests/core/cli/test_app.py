"""The command itself: help, version, exit codes, what an error looks like."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

import taskrecipe.core.cli.catalog
from taskrecipe.core import errors

COMMANDS = [
    "run", "resume", "fingerprint", "validate", "new", "new-plugin", "explain", "migrate", "schema", "list",
    "show", "plugins",
]  # fmt: skip


def test_version(recipe):
    shown = recipe("--version")
    assert (shown.code, shown.out) == (0, f"recipe {version('taskrecipe')}\n")


def test_help_names_every_command_and_the_exit_codes(recipe):
    shown = recipe("--help")
    assert shown.code == 0
    assert all(command in shown.out for command in COMMANDS)
    assert "130/143" in shown.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(recipe, command):
    shown = recipe(command, "--help")
    assert shown.code == 0
    assert f"recipe {command}" in shown.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lits"], "Did you mean 'list'"),
        (["list", "--yaml"], "--yaml"),
        (["run"], "SPEC"),
        (["run", "x.toml", "--processes", "0"], "--processes"),
        (["validate", "x.toml", "--format", "xml"], "'xml'"),
        (["show", "adamw", "--group", "cooks"], "'cooks'"),
        ([], "Usage"),
    ],
)
def test_a_wrong_command_line_exits_2(recipe, arguments, said):
    outcome = recipe(*arguments)
    assert outcome.code == 2
    assert said in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("wrong"), 2),
        (errors.DataError("wrong", split="train", row=3, column="label"), 3),
        (errors.DiskFullError("wrong"), 4),
        (errors.PluginError("wrong"), 5),
        (errors.Interrupted(15, "wrong"), 143),
        (errors.RecipeError("wrong"), 1),
    ],
)
def test_an_error_made_for_the_reader_is_one_message_and_its_exit_code(recipe, monkeypatch, error, code):
    monkeypatch.setattr(taskrecipe.core.cli.catalog, "print_recipes", raising(error))
    outcome = recipe("list")
    assert outcome.code == code
    assert outcome.err == f"error: {error}\n"
    assert outcome.out == ""


def test_an_unexpected_error_keeps_its_traceback():
    broken = "import sys; sys.argv = ['recipe', 'list']; import taskrecipe.core.cli.catalog as c; c.installed = None; "
    done = run_python("-c", broken + "from taskrecipe.core.cli import main; main()")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "TypeError" in done.stderr


def test_an_interrupt_exits_130(recipe, monkeypatch):
    monkeypatch.setattr(taskrecipe.core.cli.catalog, "print_recipes", raising(KeyboardInterrupt()))
    outcome = recipe("list")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("command", ["schema", "validate ."])
def test_a_closed_pipe_is_no_error(tmp_path, command):
    for number in range(20):
        (tmp_path / f"{number}.toml").write_text("\n".join(f"unknown_{key} = 1" for key in range(90)))
    script = f"{sys.executable} -m taskrecipe.core {command} | head -c 10"
    done = subprocess.run(script, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert len(done.stdout) == 10
    assert done.stderr == ""


def test_python_m_is_the_same_command():
    assert run_python("-m", "taskrecipe.core", "--version").stdout == f"recipe {version('taskrecipe')}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("recipe show gl", {"glue"}),
        ("recipe new swa", {"swag"}),
        ("recipe show adamw", {"adamw", "adamw_8bit"}),
        ("recipe explain x.toml train.learning", {"train.learning_rate"}),
        ("recipe validate --format sa", {"sarif"}),
        ("recipe fing", {"fingerprint"}),
    ],
)
def test_the_shell_completes_names_and_keys(typed, offered):
    assert complete(typed) == offered


def test_the_shell_completes_specs_and_folders(tmp_path):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "one.toml").touch()
    (tmp_path / "specs" / "notes.txt").touch()
    assert complete("recipe validate sp", cwd=tmp_path) == {"specs/"}
    assert complete("recipe run specs/", cwd=tmp_path) == {"specs/one.toml"}


def complete(typed: str, cwd=None) -> set[str]:
    """What bash would offer at the end of a half-written line."""
    words = {"_RECIPE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    return set(run_python("-m", "taskrecipe.core", cwd=cwd, env={**os.environ, **words}).stdout.split())


def run_python(*arguments: str, cwd=None, env=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=env)


def raising(error: BaseException):
    def fail(**_):
        raise error

    return fail
