"""`recipe validate`: what it takes, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.support.distributions import install

ROOT = Path(__file__).parents[2]
GOOD = (ROOT / "specs" / "mrpc.toml").read_text()
BAD = GOOD.replace("learning_rate", "learning_rat")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Specs, good and bad, and what is none."""
    monkeypatch.chdir(tmp_path)
    files = {
        "specs/a.toml": GOOD,
        "specs/deep/er/b.toml": GOOD,
        "specs/bad.toml": BAD,
        "specs/_base.toml": "seed = 1\n",
        "specs/.hidden.toml": "nothing",
        "specs/.cache/c.toml": "nothing",
        "specs/notes.txt": "nothing",
        "empty/notes.txt": "nothing",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_valid_spec_is_one_line(recipe, folder):
    outcome = recipe("validate", "specs/a.toml")
    assert (outcome.code, outcome.out, outcome.err) == (0, "1 spec checked, no problems\n", "")


def test_a_folder_is_searched_for_specs(recipe, folder):
    outcome = recipe("validate", "specs")
    assert outcome.code == 2
    assert outcome.out.endswith("4 specs checked, 1 problem in 1\nhelp: recipe guide unknown-key\n")
    assert outcome.out.startswith("specs/bad.toml:21:1: error[unknown-key]: 'learning_rat' is not a key of [train]\n")
    assert "a.toml" not in outcome.out


@pytest.mark.parametrize(
    ("paths", "count"),
    [
        (["specs/a.toml", "specs/deep"], 2),
        (["specs/a.toml", "specs/a.toml"], 1),
        (["specs/**/*.toml"], 4),
        (["specs/[ab].toml", "specs/deep/er/?.toml"], 2),
    ],
)
def test_files_folders_and_globs_mix(recipe, folder, paths, count):
    assert f"{count} spec{'s' * (count > 1)} checked" in recipe("validate", *paths).out


def test_a_file_named_like_a_glob_is_a_file(recipe, folder):
    (folder / "[x].toml").write_text(GOOD)
    assert recipe("validate", "[x].toml").code == 0


@pytest.mark.parametrize(
    ("path", "said"),
    [("empty", "has no *.toml"), ("none/*.toml", "matches nothing"), ("a**b/*.toml", "matches nothing")],
)
def test_nothing_to_check_is_an_error(recipe, folder, path, said):
    outcome = recipe("validate", path)
    assert outcome.code == 2
    assert said in outcome.err


def test_a_file_that_is_not_there_is_a_problem_like_any_other(recipe, folder):
    outcome = recipe("validate", "nothing.toml", "specs/a.toml")
    assert outcome.code == 2
    assert outcome.out == (
        "nothing.toml:1:1: error[unreadable]: can't be read: no such file or directory\n"
        "2 specs checked, 1 problem in 1\nhelp: recipe guide unreadable\n"
    )


def test_json_is_all_there_is_on_stdout(recipe, folder):
    outcome = recipe("validate", "specs", "--format", "json")
    assert recipe("validate", "specs", "--json") == outcome
    assert outcome.code == 2
    [record] = json.loads(outcome.out)
    assert record == {
        "file": "specs/bad.toml",
        "line": 21,
        "column": 1,
        "code": "unknown-key",
        "message": "'learning_rat' is not a key of [train]",
        "suggestion": "learning_rate",
        "help": "recipe guide unknown-key",
    }
    assert outcome.err == "4 specs checked, 1 problem in 1\n"
    assert recipe("validate", "specs/a.toml", "--format", "json").out == "[]\n"


def test_sarif_and_github(recipe, folder):
    assert (
        json.loads(recipe("validate", "specs", "--format", "sarif").out)["runs"][0]["results"][0]["ruleId"]
        == "unknown-key"
    )
    assert recipe("validate", "specs", "--format", "github").out.startswith(
        "::error file=specs/bad.toml,line=21,col=1,"
    )


def test_a_plugin_that_fails_exits_5_and_stops_no_other_spec(recipe, folder, site):
    install(site, "ruins", {"recipes": {"ruin": "ruin:Ruin"}}, {"ruin": "raise RuntimeError('in ruins')"})
    (folder / "specs" / "0.toml").write_text(GOOD.replace('"glue"', '"ruin"'))
    outcome = recipe("validate", "specs")
    assert outcome.code == 5
    assert (
        "specs/0.toml:1:1: error[plugin-failed]: recipe 'ruin' (ruin:Ruin) of ruins 1.0 failed to import" in outcome.out
    )
    assert "RuntimeError: in ruins" in outcome.out
    assert "specs/bad.toml:21:1" in outcome.out
    assert outcome.out.endswith("5 specs checked, 2 problems in 2\nhelp: recipe guide plugin-failed\n")
    assert recipe("validate", "specs/a.toml").code == 0


def test_a_plugin_of_two_owners_is_a_problem_of_the_spec_that_names_it(recipe, folder, site):
    install(site, "shadow", {"recipes": {"glue": "shadow:Glue"}}, {"shadow": ""})
    outcome = recipe("validate", "specs/a.toml")
    assert outcome.code == 2
    assert "specs/a.toml:3:10: error[ambiguous-recipe]" in outcome.out
    assert "'taskrecipe:glue'" in outcome.out
    assert "'shadow:glue'" in outcome.out
    (folder / "full.toml").write_text(GOOD.replace('"glue"', '"taskrecipe:glue"'))
    assert recipe("validate", "full.toml").code == 0


def test_a_part_need_not_be_complete_but_its_keys_must_exist(recipe, folder):
    part = folder / "specs" / "_base.toml"
    for right in ("seed = 1\n", "[optimizer]\nmomentum = 0.9\n", '[data]\nname = "x"\n', "[train]\nbatch_size = 8\n"):
        part.write_text(right)
        assert recipe("validate", part).code == 0, right
    for wrong, said in {
        "[train]\nbatch_siz = 8\n": "'batch_size'",
        "sede = 1\n": "'seed'",
        "[train]\nepochs = 'x'\n": "[train].epochs must be",
        "spec_version = 9\n": "spec_version",
        'seed = "hf_abcdefghijklmnopqrstuvwxyz"\n': "secret",
    }.items():
        part.write_text(wrong)
        outcome = recipe("validate", part)
        assert outcome.code == 2, wrong
        assert said in outcome.out


HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("_base", "seed = 7\n", 0),
        ("_base", "sede = 7\n", 2),
        ("_base", "[train]\nepochs = 0\n", 2),
        ("child", 'extends = "_base.toml"\nseed = 8\n', 0),
        ("child", 'extends = "_base.toml"\nsede = 8\n', 2),
        (".hidden", "nothing", 0),
    ],
)
def test_the_hook_agrees_with_validating_the_folder(recipe, tmp_path, monkeypatch, name, text, code):
    """The hook runs its entry on the whole folder, so that a changed part is checked with its children."""
    monkeypatch.chdir(tmp_path)
    specs = tmp_path / "specs"
    specs.mkdir()
    (specs / "_base.toml").write_text(GOOD)
    (specs / "child.toml").write_text('extends = "_base.toml"\n')
    if name == "_base" and code == 0:
        text = GOOD.replace("seed = 42", "seed = 7")
    (specs / f"{name}.toml").write_text(text)
    assert HOOK["pass_filenames"] is False
    command = [*HOOK["entry"].split(), *HOOK["args"]]
    assert command[0] == "recipe"
    by_hook = recipe(*command[1:])
    assert by_hook.code == recipe("validate", "specs").code == code, by_hook.out


def test_a_change_of_a_part_that_breaks_its_child_is_found(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "_base.toml").write_text(GOOD.replace("epochs = 3\n", ""))
    (tmp_path / "specs" / "child.toml").write_text('extends = "_base.toml"\n')
    outcome = recipe("validate", *HOOK["args"])
    assert outcome.code == 2
    assert "needs 'epochs' or 'updates'" in outcome.out


def test_loops_of_links_are_not_followed(recipe, folder):
    for name in ("a", "b", "c"):
        (folder / "specs" / name).symlink_to(".")
    assert "4 specs checked" in recipe("validate", "specs/**/*.toml").out
    assert "4 specs checked" in recipe("validate", "specs").out


def test_every_bundled_spec_is_valid(recipe):
    specs = sorted((ROOT / "specs").rglob("*.toml"))
    outcome = recipe("validate", *specs)
    assert outcome.out == f"{len(specs)} spec{'s' * (len(specs) > 1)} checked, no problems\n"
    assert len(specs) >= 1
