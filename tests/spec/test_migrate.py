"""Files of other versions of the format."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tests.support.specplugins import registry

from taskrecipe.cli.validate import problems_of
from taskrecipe.errors import SpecError, UsageError
from taskrecipe.spec import migrate as module
from taskrecipe.spec.migrate import migrate

OLD = """\
# Kept: a comment at the top.
spec_version = 0   # and one here
recipe = "sorting"

[training]  # once called so
rounds = 3          # epochs, then
learning_rate = 1e-3
[task]
name = "red"
[model]
name = "m"
[data]
path = "d"
"""


def rename(document):
    """A migration that only the tests have: version 0 called [train] otherwise."""
    document["train"] = document.pop("training")
    document["train"]["epochs"] = document["train"].pop("rounds")


def test_an_old_file_is_rewritten_with_its_comments(write):
    path = write(spec=OLD)
    path.chmod(0o640)
    assert migrate(path, {0: rename}) is True
    text = path.read_text()
    assert "# Kept: a comment at the top.\nspec_version = 1" in text
    assert "# and one here" in text
    assert problems_of(path, registry()) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(Path().iterdir()) == [path]
    assert migrate(path, {0: rename}) is False
    assert path.read_text() == text


def test_several_steps_are_taken_one_after_the_other(write):
    steps = []
    path = write(spec=OLD.replace("spec_version = 0", "spec_version = -1"))
    migrate(
        path,
        {
            -1: lambda document: steps.append(document["spec_version"]),
            0: lambda document: steps.append(document["spec_version"]),
        },
    )
    assert steps == [-1, 0]
    assert "spec_version = 1" in path.read_text()


def test_a_file_of_this_version_is_left_alone(write, spec_text):
    path = write(spec=spec_text)
    before = path.stat()
    assert migrate(path) is False
    assert path.stat() == before


def test_line_ends_and_links_stay(write, tmp_path):
    path = write(spec="")
    path.write_bytes(OLD.replace("\n", "\r\n").encode())
    link = tmp_path / "link.toml"
    link.symlink_to("spec.toml")
    migrate(link, {0: rename})
    assert link.is_symlink()
    assert path.read_bytes().count(b"\r\n") == path.read_bytes().count(b"\n") > 5


def test_a_migration_that_fails_leaves_the_file_and_nothing_beside_it(write, monkeypatch):
    path = write(spec=OLD)
    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(UsageError, match=r"spec.toml can't be rewritten: no"):
        migrate(path, {0: rename})
    assert path.read_text() == OLD
    assert list(Path().iterdir()) == [path]


def failing(*_):
    raise OSError("no")


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        ("2", "a newer taskrecipe reads it"),
        ("0", "no such version exists"),
        ("-5", "no such version"),
        ("9" * 40, "newer"),
    ],
)
def test_another_version_is_the_only_problem_told(problem, spec_text, version, advice):
    found = problem(spec_text.replace("spec_version = 1", f"spec_version = {version}").replace("epochs", "rounds"))
    assert (found.code, found.line, found.column) == ("spec-version", 1, 16)
    assert advice in found.message


def test_an_old_version_is_told_the_command(problem, spec_text, monkeypatch):
    monkeypatch.setitem(module.MIGRATIONS, 0, rename)
    found = problem(spec_text.replace("spec_version = 1", "spec_version = 0"))
    assert "`recipe migrate spec.toml` rewrites it" in found.message


def test_a_parent_of_another_version_is_told_in_the_parent(write, spec_text):
    path = write(base="spec_version = 3\n", spec='extends = "base.toml"\n' + spec_text)
    [found] = problems_of(path, registry())
    assert (found.file, found.code) == ("base.toml", "spec-version")


@pytest.mark.parametrize(
    "text", ["a = 1\n", "spec_version = '1'\n", "spec_version = true\n", "spec_version = 2\n", "a = \n"]
)
def test_what_can_not_be_migrated_is_refused(write, text):
    path = write(spec=text)
    with pytest.raises(SpecError):
        migrate(path, {0: rename})
    assert path.read_text() == text


def test_a_missing_version_is_missing(problem, spec_text):
    found = problem(spec_text.replace("spec_version = 1\n", ""))
    assert (found.code, found.line) == ("missing-key", 1)
    assert "spec_version" in found.message
