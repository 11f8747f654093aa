"""The command itself: help, version, exit codes, what an error looks like."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import taskrecipe.cli.list_recipes
from taskrecipe import errors
from taskrecipe.cli.help.commands import OTHER_NAMES

COMMANDS = [
    "run", "resume", "fetch", "sweep", "repeat", "submit", "replay", "runs", "compare", "evaluate", "predict", "export",
    "report", "watch", "fingerprint", "preview", "validate", "new", "new-plugin", "explain", "diff", "from-trainer",
    "migrate", "schema", "list", "show", "plugins", "guide",
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
        (["lits"], "there is no command 'lits'; did you mean `recipe list`?"),
        (["train", "x.toml"], "did you mean `recipe run`?"),
        (["FIT"], "did you mean `recipe run`?"),
        (["eval"], "did you mean `recipe "),
        (["test"], "did you mean `recipe "),
        (["ls"], "did you mean `recipe list`?"),
        (["specs/mrpc.toml"], "did you mean `recipe run specs/mrpc.toml`?"),
        (["xyzzy"], "`recipe --help` lists the commands"),
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


def test_every_other_name_of_a_command_leads_to_one_that_exists():
    assert {name for names in OTHER_NAMES.values() for name in names} <= {*COMMANDS}


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
    monkeypatch.setattr(taskrecipe.cli.list_recipes, "print_list", raising(error))
    outcome = recipe("list")
    assert outcome.code == code
    assert outcome.err == f"error: {error}\n" + (f"help: recipe guide {error.code}\n" if error.code else "")
    assert outcome.out == ""
    told = json.loads(recipe("list", "--json").err)["error"]
    assert (told["exit_code"], told["message"]) == (code, str(error))
    assert told.get("help") == (f"recipe guide {error.code}" if error.code else None)


def test_an_unexpected_error_keeps_its_traceback():
    broken = "import sys; sys.argv = ['recipe', 'list']; import taskrecipe.cli.list_recipes as c; c.installed = None; "
    done = run_python("-c", broken + "from taskrecipe.cli import main; main()")
    assert done.returncode == 1
    assert "TypeError" in done.stderr
    assert "Traceback" not in done.stderr
    [file] = re.findall(r"\S+/[\w.-]+\.(?:txt|log)", done.stderr)
    assert "Traceback" in Path(file).read_text()


def test_an_interrupt_exits_130(recipe, monkeypatch):
    monkeypatch.setattr(taskrecipe.cli.list_recipes, "print_list", raising(KeyboardInterrupt()))
    outcome = recipe("list")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("command", ["schema", "validate ."])
def test_a_closed_pipe_is_no_error(tmp_path, command):
    for number in range(20):
        (tmp_path / f"{number}.toml").write_text("\n".join(f"unknown_{key} = 1" for key in range(90)))
    script = f"{sys.executable} -m taskrecipe {command} | head -c 10"
    done = subprocess.run(script, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert len(done.stdout) == 10
    assert done.stderr == ""


def test_python_m_is_the_same_command():
    assert run_python("-m", "taskrecipe", "--version").stdout == f"recipe {version('taskrecipe')}\n"


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


SPEC = "specs/mrpc.toml"
BOOLEANS = ("data.streaming=true", "data.streaming=false")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["run", SPEC, "--set", "train.lea"], {"train.learning_rate="}),
        (
            ["run", SPEC, "--set", "train.prec"],
            {f"train.precision={value}" for value in ("", "no", "bf16", "fp16", "fp8")},
        ),
        (["run", SPEC, "--set", "train.precision", "=", "f"], {"fp16", "fp8"}),
        (["run", SPEC, "--set", "train.precision", "="], {"no", "bf16", "fp16", "fp8"}),
        (["run", SPEC, "--set", "train.epochs", "=", "1", "--set", "data.stre"], {"data.streaming=", *BOOLEANS}),
        (["run", SPEC, "--set", "optimizer.name", "=", "adamw"], {"adamw", "adamw_8bit"}),
        (["run", SPEC, "--set", "task.name", "=", "mr"], {"mrpc"}),
        (["explain", SPEC, "--set", "recipe", "=", "gl"], {"glue"}),
        (["run", SPEC, "--set", "nothing.of.this", "=", ""], set()),
    ],
)
def test_bash_completes_keys_and_values_of_set(words, offered):
    """As bash splits them: a sign is a word of its own."""
    env = {"COMP_WORDS": "\n".join(["recipe", *words]), "COMP_CWORD": str(len(words))}
    assert answer_shell("bash", **env) == offered


def test_zsh_completes_whole_assignments():
    offered = answer_shell("zsh", _TYPER_COMPLETE_ARGS=f"recipe run {SPEC} --set train.precision=b")
    assert "train.precision=bf16" in " ".join(offered)


def answer_shell(shell: str, **env: str) -> set[str]:
    environment = {**os.environ, "_RECIPE_COMPLETE": f"complete_{shell}", **env}
    return set(run_python("-m", "taskrecipe", cwd=Path(__file__).parents[2], env=environment).stdout.split())


def test_the_shell_completes_specs_and_folders(tmp_path):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "one.toml").touch()
    (tmp_path / "specs" / "notes.txt").touch()
    assert complete("recipe validate sp", cwd=tmp_path) == {"specs/"}
    assert complete("recipe run specs/", cwd=tmp_path) == {"specs/one.toml"}


def complete(typed: str, cwd=None) -> set[str]:
    """What bash would offer at the end of a half-written line."""
    words = {"_RECIPE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    return set(run_python("-m", "taskrecipe", cwd=cwd, env={**os.environ, **words}).stdout.split())


def run_python(*arguments: str, cwd=None, env=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=env)


def raising(error: BaseException):
    def fail(**_):
        raise error

    return fail
