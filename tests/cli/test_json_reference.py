"""The page about JSON lists every key that the commands print, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskrecipe.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pages" / "reference" / "json.md").read_text()
SECTION = re.compile(r"^## recipe [^\n]*\{#([\w-]+)\}\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(PAGE))
SPEC = str(ROOT / "specs" / "mrpc.toml")
LIGHT = {
    "validate": ["validate", "wrong.toml"],
    "list": ["list"],
    "show": ["show", "glue"],
    "plugins": ["plugins"],
    "explain": ["explain", SPEC],
    "diff": ["diff", SPEC, str(ROOT / "specs" / "swag.toml")],
    "new": ["new", "glue", "mine.toml"],
    "from-trainer": ["from-trainer", "args.json", "--recipe", "glue"],
    "migrate": ["migrate", "good.toml"],
    "guide": ["guide"],
    "new-plugin": ["new-plugin", "my_own"],
}
HEAVY = {
    "preview": ["preview", SPEC, "--sample", "-n", "1"],
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "rows.csv", "-o", "answers.csv"],
    "runs": ["runs", "."],
    "export": ["export", "run", "--to", "hf", "-o", "exported"],
    "report": ["report", "run"],
    "fetch": ["fetch", "file://{here}/far/run", "--out", "fetched"],
    "fingerprint": ["fingerprint", "run"],
    "replay": ["replay", "run", "--out", "again"],
    "submit": ["submit", SPEC, "--slurm", "--dry"],
    "sweep": ["sweep", "sweep.toml", "--sample", "--set", "train.updates=4", "--out", "sweep"],
}


def documented_keys(name: str) -> set[str]:
    rows = [line.split(" | ")[0] for line in SECTIONS[name].splitlines() if line.startswith("| `")]
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


def printed_keys(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from printed_keys(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from printed_keys(inner, f"{path}[]")
    else:
        yield path


def matches(documented: str, printed: str) -> bool:
    """Whether a key is documented: `*` stands for a name, and a last `*` or `[]` for anything inside."""
    pattern = re.escape(documented).replace(r"\*", r"[^\[]*?")
    inside = r"(\..*|\[\].*)?" if documented.endswith(("*", "[]")) else ""
    return re.fullmatch(pattern + inside, printed) is not None


def check(name: str, text: str) -> None:
    documented, printed = documented_keys(name), set(printed_keys(json.loads(text)))
    strange = {key for key in printed if not any(matches(known, key) for known in documented)}
    empty = {known for known in documented if not any(matches(known, key) for key in printed)}
    # What is empty or null ends earlier than its documented keys: `problems` instead of `problems[]`.
    ends = {key for key in strange if any(known.startswith((f"{key}[", f"{key}.")) for known in documented)}
    assert strange - ends == set()
    assert {known for known in empty if not any(known.startswith((f"{key}[", f"{key}.")) for key in ends)} == set()


@pytest.mark.parametrize("name", LIGHT)
def test_every_key_is_documented(recipe, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.toml").write_text(Path(SPEC).read_text())
    Path("wrong.toml").write_text('spec_version = 1\nrecipe = "gleu"\n')
    Path("args.json").write_text('{"learning_rate": 1e-5, "neftune_noise_alpha": 5}')
    check(name, recipe(*LIGHT[name], "--json").out)


def test_every_key_about_a_run_is_documented(zygote, tmp_path):
    short = ("--set", "train.updates=2", "--set", f"checkpoint.mirror=file://{tmp_path}/far")
    trained = zygote.run("run", SPEC, "--sample", *short, "--out", "run", "--json", cwd=tmp_path)
    assert trained.code == 0, trained.stderr
    (tmp_path / "rows.csv").write_text("sentence1,sentence2\nIt is late.,The hour is late.\n")
    space = '[sweep]\nsampler = "grid"\n[sweep.space]\n"train.learning_rate" = [1e-3]\n'
    (tmp_path / "sweep.toml").write_text(f'extends = "{SPEC}"\n{space}')
    events = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", SECTIONS["run"], re.MULTILINE))
    for line in trained.stdout.splitlines():
        record = json.loads(line)
        known = {"event", "step", "time", *re.findall(r"`(\w+)`", events[record["event"]])}
        assert set(record) <= known, record
    assert zygote.run("watch", "run", "--json", cwd=tmp_path).stdout.count('"event": "update"') == 2
    for name, command in HEAVY.items():
        done = zygote.run(*(word.format(here=tmp_path) for word in command), "--json", cwd=tmp_path)
        assert done.code == 0, done.stderr
        check(name, done.stdout)


def test_every_command_that_prints_facts_takes_json():
    import typer

    commands = typer.main.get_command(app).commands
    without = {
        name for name, command in commands.items() if "--json" not in {o for p in command.params for o in p.opts}
    }
    assert without == {"schema"}  # which is JSON already
    assert set(SECTIONS) >= set(commands) - without - {"resume", "watch", "repeat"}


def test_an_error_is_json_too(recipe, tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text('spec_version = 1\nrecipe = "gleu"\n')
    refused = recipe("explain", path, "--json")
    error = json.loads(refused.err)["error"]
    assert (refused.code, error["exit_code"], error["code"], refused.out) == (2, 2, "spec", "")
    assert {problem["code"] for problem in error["problems"]} == {"unknown-recipe", "missing-key"}
