"""Specs meant to break things, through the command: a message and an exit code, at once, with nothing loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskrecipe.cli.validate import problems_of, validate
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.diagnostics import render_problems
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.table import Table

ROOT = Path(__file__).parents[2]
BUNDLED = sorted((ROOT / "specs").rglob("*.toml"))
MRPC = (ROOT / "specs" / "mrpc.toml").read_text()

INTEGERS = ["0", "-1", str(2**31), str(2**63), str(10**30), "9" * 5000, "0x" + "f" * 5000]
RATES = ["nan", "inf", "-inf", "0", "-1", "1e400", "true", '"1e-3"', "[]", "{}", "1979-05-27T07:32:00Z"]
TEXTS = ['""', f'"{"x" * 1_000_000}"', f'"{"x" * 5000}"', '"a\\u0000b"', '"a\\u202eb"', '"a\u202eb"', "1", "true"]
NAMES = ["../../x", "/", "~", ".", "..", "a/b", "", "x" * 65, "con\\\\aux", "a b", "-rf"]


def replace_value(old: str, new: str) -> str:
    assert old in MRPC
    return MRPC.replace(old, new)


CORPUS = {
    **{f"integer {value[:12]}": replace_value("epochs = 3", f"epochs = {value}") for value in INTEGERS},
    **{f"rate {value}": replace_value("5e-5", value) for value in RATES},
    **{f"text {value[:12]}": replace_value('"google-bert/bert-base-cased"', value) for value in TEXTS},
    **{f"name {value}": f'name = "{value}"\n{MRPC}' for value in NAMES},
    "warmup longer than training": replace_value("epochs = 3", "updates = 3").replace("warmup = 0.06", "warmup = 4"),
    "unknown recipe": replace_value('"glue"', '"gleu"'),
    "unknown metric": replace_value('best = "f1"', 'best = "f2"'),
    "nested": "a = " + "[" * 5000 + "]" * 5000,
    "nested tables": "a = " + "{ a = " * 5000 + "1" + " }" * 5000,
    "dotted": ".".join(["a"] * 20_000) + " = 1",
    "large": f"a = '{'x' * 10_000_000}'",
    "empty": "",
    "NUL": MRPC + "\x00",
    "duplicate key": replace_value("epochs = 3", "epochs = 3\nepochs = 3"),
    "duplicate table": MRPC + "\n[train]\n",
    "secret": replace_value('"google-bert/bert-base-cased"', '"hf_abcdefghijklmnopqrstuvwxyz"'),
    "secret key": f'"hf_abcdefghijklmnopqrstuvwxyz" = 1\n{MRPC}',
    "nothing but keys": "".join(f"k{n} = 1\n" for n in range(9000)),
    "thousands of callbacks": "[[callbacks]]\nname = 'x'\n" * 4000,
    "a long list": "callbacks = [" + "1," * 9000 + "]",
    "a long key": "x" * 900_000 + " = 1",
    "UTF-16": MRPC.encode("utf-16"),
    "Latin-1": replace_value("BERT", "BÉRT").encode("latin-1"),
    "an unknown key in each table": "\n".join(
        f"{line}\nxyzzy = 1" if line[:1] == "[" else line for line in MRPC.split("\n")
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    problems_of(ROOT / "specs" / "mrpc.toml", installed())


@pytest.mark.parametrize("name", CORPUS)
def test_a_hostile_spec_is_refused_at_once(name, tmp_path, capsys):
    text = CORPUS[name]
    path = tmp_path / "spec.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    start = time.monotonic()
    code = validate([str(path)], "text")
    assert time.monotonic() - start < 1
    out = capsys.readouterr().out
    assert code == 2
    assert "error[" in out
    assert len(out) < 50_000
    assert "abcdefghijklmnop" not in out
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "prepare", [b"\xef\xbb\xbf".__add__, lambda text: text.replace(b"\n", b"\r\n")], ids=["BOM", "CRLF"]
)
def test_what_only_looks_odd_is_accepted(prepare, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_bytes(prepare(MRPC.encode()))
    assert problems_of(path, installed()) == []


def every_key(model: type[Table] = Spec, path: tuple[str, ...] = ()):
    """Every key of a spec, with tables, plugins aside."""
    for key, field in model.model_fields.items():
        yield (*path, key)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            yield from every_key(field.annotation, (*path, key))


@pytest.mark.parametrize("key", [".".join(path) for path in every_key()])
def test_a_wrong_type_for_each_key(key, tmp_path):
    """Of a date no key can be made; the place is that of the line below all others."""
    path = tmp_path / "spec.toml"
    inline = f"{key} = 07:32:00\n"
    tables = {
        "model": 'name = "m"',
        "data": 'path = "d"',
        "task": 'name = "mrpc"',
        "train": "epochs = 1\nlearning_rate = 1",
    }
    rest = "".join(f"{table}.{line}\n" for table, lines in tables.items() for line in lines.split("\n"))
    given = f'spec_version = 1\nrecipe = "glue"\n{rest}'
    kept = [line for line in given.split("\n") if line and not _collides(line.partition(" =")[0], key)]
    path.write_text("\n".join(kept) + f"\n{inline}")
    at_the_line = [problem for problem in problems_of(path, installed()) if problem.line == len(kept) + 1]
    assert [(problem.code, problem.column) for problem in at_the_line] in (
        [("wrong-type", len(key) + 4)],
        [("unknown-value", len(key) + 4)],
    )


def _collides(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: path.mkdir(), 2),
        (os.mkfifo, 2),
        (lambda path: path.symlink_to(path), 2),
        (lambda path: path.write_text(MRPC.replace("learning_rate", "learning_rat")), 2),
        (lambda path: path.write_text(MRPC), 0),
    ],
    ids=["folder", "FIFO", "loop", "wrong", "right"],
)
def test_a_whole_command_loads_nothing_heavy_and_opens_no_socket(make, code, tmp_path):
    make(tmp_path / "spec.toml")
    script = """
import socket, sys
def refuse(*_, **__): raise AssertionError("a socket was opened")
socket.socket.__init__ = socket.create_connection = socket.getaddrinfo = refuse
sys.argv = ["recipe", "validate", "spec.toml"]
from taskrecipe.cli import main
try:
    main()
finally:
    print(*sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    loaded = set(done.stderr.split("\n")[-2].split())
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code
    assert not loaded & {"torch", "transformers", "datasets", "accelerate", "evaluate", "numpy"}
    assert code or not loaded & {"tree_sitter", "tomlkit", "difflib"}


LINES = [line for path in BUNDLED for line in path.read_text().split("\n")]
VALUES = [*INTEGERS, *RATES, *TEXTS[2:], "{ name = 1 }", "[[1]]", "'''", '"unclosed', "epoch", "= 3"]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A bundled spec with a few lines dropped, doubled, swapped, mixed with others or given another value or name."""
    lines = draw(st.sampled_from(BUNDLED)).read_text().split("\n")
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(0, len(lines) - 1))
        key, equals, value = lines[n].partition("=")
        lines[n : n + 1] = draw(
            st.sampled_from(
                [
                    [],
                    [lines[n], lines[n]],
                    [lines[-1 - n]],
                    [draw(st.sampled_from(LINES)), lines[n]],
                    [key + equals + draw(st.sampled_from(VALUES))],
                    [draw(st.text(max_size=8)) + equals + value],
                    [key[1:] + equals + value],
                    [lines[n] + draw(st.text(max_size=4))],
                    ["[" + key.strip() + "]"],
                ]
            )
        ) or [""]
    return "\n".join(lines)


def meets_no_traceback(text: str, path: Path) -> None:
    path.write_text(text, newline="")
    problems = problems_of(path, installed())
    for style in ("text", "json", "github", "sarif"):
        render_problems(problems, style)


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=mutated())
def test_no_mutation_of_a_bundled_spec_is_met_with_a_traceback(text, tmp_path):
    meets_no_traceback(text, tmp_path / "spec.toml")


@pytest.mark.chaos
@settings(max_examples=10_000, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=mutated())
def test_none_of_10_000_mutations_is_met_with_a_traceback(text, tmp_path):
    meets_no_traceback(text, tmp_path / "spec.toml")


@settings(max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_are_met_with_a_traceback(raw, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_bytes(raw)
    assert problems_of(path, installed()) != []
