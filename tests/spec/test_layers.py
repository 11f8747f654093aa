"""`extends`, `--set`, and where values came from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.specplugins import registry

from taskrecipe.errors import PluginError, SpecError
from taskrecipe.spec.resolve import resolve

BASE = """\
seed = 7
callbacks = [{ name = "bell", times = 2 }, { name = "bell" }]

[train]
learning_rate = 0.5
batch_size = 8

[task]
name = "green"
"""

CHILD = """\
extends = "base.toml"
spec_version = 1
recipe = "sorting"
callbacks = [{ name = "bell" }]

[model]
name = "m"
[data]
path = "d"
[train]
epochs = 2
batch_size = 16
"""


def resolved(path: Path, *sets: str, sample: bool = False):
    return resolve(path, sets, sample, registry())


def refused(path: Path, *sets: str, sample: bool = False):
    with pytest.raises(SpecError) as caught:
        resolved(path, *sets, sample=sample)
    return caught.value.problems


def test_tables_merge_and_lists_are_replaced(write):
    spec = resolved(write(base=BASE, child=CHILD)).spec
    assert (spec.seed, spec.train.batch_size, spec.train.learning_rate, spec.task.name) == (7, 16, 0.5, "green")
    assert [callback.times for callback in spec.callbacks] == [1]


def test_every_value_knows_its_origin(write):
    origins = resolved(write(base=BASE, child=CHILD), "train.epochs=5").origins
    assert {
        key: str(origins.of(key))
        for key in ("seed", "train.batch_size", "train.learning_rate", "train.epochs", "train.order")
    } == {
        "seed": "base.toml:1 (extended)",
        "train.batch_size": "child.toml:12",
        "train.learning_rate": "base.toml:5 (extended)",
        "train.epochs": "--set",
        "train.order": "default",
    }
    assert str(origins.of(("callbacks", 0, "name"))) == "child.toml:4"
    assert str(origins.of(("callbacks", 0, "times"))) == "default"  # the parent's list is gone as a whole


def test_parents_of_parents_and_other_folders(write, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "middle.toml").write_text('extends = "../base.toml"\nname = "middle"\n')
    path = write(base=BASE, child=CHILD.replace("base.toml", "far/middle.toml"))
    result = resolved(path)
    assert (result.spec.seed, result.spec.name) == (7, "middle")
    assert str(result.origins.of("name")) == "far/middle.toml:2 (extended)"


def test_problems_of_a_parent_are_told_in_the_parent(write):
    [problem] = refused(write(base=BASE.replace("seed", "sede"), child=CHILD))
    assert (problem.file, problem.line, problem.suggestion) == ("base.toml", 1, "seed")


def test_a_parent_that_is_no_toml(write):
    [problem] = refused(write(base="password hunter2\n", child=CHILD))
    assert (problem.file, problem.line, problem.code) == ("base.toml", 1, "syntax")
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize(
    "text", ["hunter2 = 1\nhunter2 = 2\n", "[hunter2]\n[hunter2]\n", "[credentials]\ntoken = 'hunter2'\n"]
)
def test_nothing_of_a_parent_that_is_no_spec_is_printed(write, text):
    [problem] = refused(write(base=text, child=CHILD))
    assert "hunter2" not in str(problem)
    assert "spec" in problem.message


@pytest.mark.parametrize(
    ("extends", "said"),
    [
        ('"nothing.toml"', "'nothing.toml' can't be read: no such file"),
        ('"."', "it is a folder"),
        ('"child.toml"', "extends this file in turn"),
        ('"./x/../child.toml"', "extends this file in turn"),
        ('"circle.toml"', "extends this file in turn"),
        ('""', "must be the name of a spec"),
        ("3", "must be the name of a spec"),
        ('["base.toml"]', "found a list"),
    ],
)
def test_a_wrong_parent_is_told_at_the_line_that_names_it(write, extends, said):
    circle = 'extends = "child.toml"\n'
    [problem] = refused(write(circle=circle, child=CHILD.replace('"base.toml"', extends)))
    assert (problem.code, problem.line, problem.column) == ("bad-extends", 1, 11)
    assert problem.file == ("circle.toml" if "circle" in extends else "child.toml")
    assert said in problem.message


def test_a_circle_over_a_link(write, tmp_path):
    (tmp_path / "link.toml").symlink_to("child.toml")
    [problem] = refused(write(child=CHILD.replace("base.toml", "link.toml")))
    assert "extends this file in turn" in problem.message


def test_a_line_of_parents_without_end(write):
    files = {f"p{n}": f'extends = "p{n + 1}.toml"\n' for n in range(40)}
    [problem] = refused(write(**files, p40=BASE, child=CHILD.replace("base.toml", "p0.toml")))
    assert (problem.code, problem.file) == ("bad-extends", "p15.toml")
    assert "more than 16" in problem.message


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.epochs=7", "train.epochs", 7),
        ("train.epochs = 7  # as in the paper", "train.epochs", 7),
        ("train.learning_rate=3e-5", "train.learning_rate", 3e-5),
        ("train.precision=bf16", "train.precision", "bf16"),
        ("train.precision=no", "train.precision", "no"),
        ("train.precision='bf16'", "train.precision", "bf16"),
        ("model.name=google-bert/bert-base_cased", "model.name", "google-bert/bert-base_cased"),
        ("data.files.train=data/*.csv", "data.files", None),
        ("train.compile=true", "train.compile", True),
        ('data.columns."a.b"="=x"', "data.columns", {"a.b": "=x"}),
        ("evaluate={every=3}", "evaluate.every", 3),
        ("recipe=fixtures:sorting", "recipe", "fixtures:sorting"),
    ],
)
def test_set(write, text, key, value):
    sets = [text, 'data={name="x", sample=true}'] if "files" in text else [text]
    if value is None:
        [problem] = refused(write(base=BASE, child=CHILD), *sets)  # both a hub id and files
        assert problem.code == "conflict"
        return
    spec = resolved(write(base=BASE, child=CHILD), *sets).spec
    for part in key.split("."):
        spec = getattr(spec, part)
    assert spec == value


def test_of_two_sets_the_later_wins(write):
    assert resolved(write(base=BASE, child=CHILD), "train.epochs=7", "train.epochs=9").spec.train.epochs == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train.epochs", "not KEY=VALUE"),
        ("", "not KEY=VALUE"),
        ("train.compile=True", "true and false are lower case"),
        ("model.name=None", "text needs quotes"),
        ("train.epochs=3 4", "after a statement"),
        ("train.epochs=", "invalid value"),
        ("train.epochs=3e", ""),
        ("train.learning_rate=.5", ""),
        ("=3", ""),
        ("model.name=two words", "invalid value"),
        ("a key=word", "not TOML"),
        ("a=1\nb=2", "one line"),
        ("extends='base.toml'", "only a file"),
        (".".join("a" * 100) + "=1", "32 levels"),
    ],
)
def test_a_wrong_set_is_told_as_it_was_typed(write, text, said):
    [problem] = refused(write(base=BASE, child=CHILD), text)
    assert (problem.file, problem.line, problem.code) == ("--set", 1, "bad-set")
    assert said in problem.message
    assert problem.source == text


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ("train.epohcs=7", "unknown-key", 7),
        ("train.epochs='x'", "wrong-type", 14),
        ("train.order=x", "unknown-value", 13),
    ],
)
def test_problems_of_a_set_are_told_there(write, text, code, column):
    [problem] = refused(write(base=BASE, child=CHILD), text)
    assert (problem.file, problem.code, problem.column) == ("--set", code, column)


def test_sample_settings_lie_over_the_file_and_under_set(write):
    result = resolved(write(base=BASE, child=CHILD), "train.batch_size=2", sample=True)
    assert (result.spec.train.learning_rate, result.spec.train.batch_size) == (0.5, 2)
    assert result.spec.data.sample
    assert str(result.origins.of("train.learning_rate")) == "sample"
    assert str(result.origins.of("train.batch_size")) == "--set"


def test_an_unknown_recipe_is_told_with_sample_too(write):
    [problem] = refused(write(base=BASE, child=CHILD.replace('"sorting"', '"sortin"')), sample=True)
    assert problem.code == "unknown-recipe"
    assert [p.code for p in refused(write(base=BASE, child=CHILD.replace('"sorting"', "[]")), sample=True)] == [
        "wrong-type"
    ]


def test_wrong_sample_settings_are_the_failure_of_the_recipe(write):
    path = write(base=BASE.replace('[task]\nname = "green"', ""), child=CHILD.replace('"sorting"', '"careless"'))
    with pytest.raises(PluginError, match="sample_settings of recipe 'careless' are wrong: 'learning_rat'"):
        resolved(path, sample=True)
