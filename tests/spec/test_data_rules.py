"""Columns that nothing reads, splits that nothing uses, and paths that are no hub id."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskrecipe.cli.validate import problems_of
from taskrecipe.plugins.registry import installed

SPEC = """\
spec_version = 1
recipe = "glue"
[task]
name = "mrpc"
[model]
name = "some/model"
[train]
epochs = 1
learning_rate = 1e-3
[data]
"""
MULTITASK = """\
spec_version = 1
recipe = "multitask"
[model]
name = "some/model"
[train]
epochs = 1
learning_rate = 1e-3
[task.tasks.a]
recipe = "glue"
task.name = "mrpc"
data.files = { train = "a.csv", validation = "b.csv" }
[task.tasks.b]
recipe = "glue"
task.name = "rte"
"""


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The problems of a spec in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def find(text: str):
        Path("spec.toml").write_text(text)
        return problems_of(Path("spec.toml"), installed())

    return find


FILES = 'files = { train = "a.csv", validation = "b.csv" }\n'


@pytest.mark.parametrize(
    ("line", "suggestion", "said"),
    [
        ('columns.sentance1 = "a"', "sentence1", "does not read a column 'sentance1', but sentence1, sentence2, label"),
        ('columns.xyzzy = "a"', None, "recipe 'glue' does not read a column 'xyzzy'"),
        ('columns.text = "label"', None, 'our name comes first: label = "text"'),
    ],
)
def test_a_column_that_the_recipe_does_not_read(found, line, suggestion, said):
    [problem] = found(f"{SPEC}{FILES}{line}\n")
    assert (problem.code, problem.line, problem.suggestion) == ("unknown-column", 12, suggestion)
    assert said in problem.message


def test_columns_that_are_numbered_are_read(found):
    swag = SPEC.replace('"glue"', '"swag"').replace('name = "mrpc"\n', "")
    assert found(f'{swag}{FILES}columns = {{ ending0 = "a", ending1 = "b", label = "c" }}\n') == []


@pytest.mark.parametrize(
    ("split", "suggestion"), [("dev", "validation"), ("valid", "validation"), ("trian", "train"), ("xyzzy", None)]
)
def test_files_of_a_split_that_is_not_used(found, split, suggestion):
    other = "train" if suggestion == "validation" else "validation"
    problems = found(f'{SPEC}files.{other} = "a.csv"\nfiles.{split} = "b.csv"\n')
    [problem] = [problem for problem in problems if problem.line == 12]
    assert (problem.code, problem.suggestion) == ("unknown-split", suggestion)


@pytest.mark.parametrize(
    "lines",
    [
        'files.test = "c.csv"',
        'files.dev = "c.csv"\nsplits.validation = "dev"',
        'files.dev = "c.csv"\n[evaluate]\nsplits = ["validation", "dev"]',
    ],
)
def test_files_of_a_split_that_is_used_or_a_test_split(found, lines):
    assert found(f'{SPEC}files.train = "a.csv"\nfiles.validation = "b.csv"\n{lines}\n') == []


def test_a_renamed_split_that_is_not_used(found):
    [problem] = found(f'{SPEC}path = "some/data"\nsplits.validaton = "dev"\n')
    assert (problem.code, problem.suggestion) == ("unknown-split", "validation")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('data.files = { train = "a", validation = "b" }', None),
        ('data = { path = "d", columns = { sentenc1 = "a" } }', "unknown-column"),
        ('data.files = { train = "a", dev = "b" }', "unknown-split"),
        ('data.path = "./here"', "conflict"),
        ('data.files = { train = "/proc/self/environ", validation = "b" }', "unreadable"),
    ],
)
def test_each_part_of_a_recipe_is_checked_at_its_own_table(found, line, code):
    problems = found(f"{MULTITASK}{line}\n")
    assert [(problem.code, problem.line) for problem in problems] == ([(code, 15)] if code else [])


def test_a_path_that_is_a_folder_says_how_to_write_it(found):
    Path("mine").mkdir()
    for name in ("train.csv", "dev.csv", "notes.txt"):
        Path("mine", name).touch()
    [problem] = found(f'{SPEC}path = "mine"\n')
    assert (problem.code, problem.line) == ("conflict", 11)
    assert "'mine' is a folder on this machine" in problem.message
    assert "[data.files] train = 'mine/train.csv', validation = 'mine/dev.csv'" in problem.message
    assert found(f'{SPEC}path = "mine"\nrevision = "main"\n') == []


@pytest.mark.parametrize("path", ["/nowhere", "./data", "../x", "~/data", "a/b/c", "data/"])
def test_a_path_that_can_only_be_local_is_no_hub_id(found, path):
    [problem] = found(f'{SPEC}path = "{path}"\n')
    assert problem.code == "conflict"
    assert "takes a hub id" in problem.message
    assert '[data.files] train = "…"' in problem.message


def test_a_path_that_is_a_file(found):
    Path("a.csv").touch()
    [problem] = found(f'{SPEC}path = "a.csv"\n')
    assert "[data.files] train = 'a.csv'" in problem.message


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/environ", "pipe", "link"])
def test_data_is_never_read_from_a_special_file(found, path):
    os.mkfifo("pipe")
    Path("link").symlink_to("/proc/self/environ")
    [problem] = found(f'{SPEC}files = {{ train = "{path}", validation = "b.csv" }}\n')
    assert (problem.code, problem.line) == ("unreadable", 11)
    assert "must be a file or a folder" in problem.message
