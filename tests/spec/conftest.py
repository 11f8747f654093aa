from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.specplugins import registry

from taskrecipe.cli.validate import problems_of
from taskrecipe.spec.diagnostics import Problem

SPEC = """\
spec_version = 1
recipe = "sorting"

[task]
name = "red"

[model]
name = "some/model"

[data]
path = "some/data"

[train]
epochs = 3
learning_rate = 1e-3
"""


@pytest.fixture
def spec_text() -> str:
    """A spec without a problem, of the tests' own plugins."""
    return SPEC


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write files into an empty working folder; the last one's path, relative to it, is returned."""
    monkeypatch.chdir(tmp_path)

    def write(**texts: str) -> Path:
        for name, text in texts.items():
            Path(f"{name}.toml").write_text(text)
        return Path(f"{name}.toml")

    return write


@pytest.fixture
def problems(write: Callable[..., Path]) -> Callable[[str], list[Problem]]:
    """The problems of a spec with the given text."""
    return lambda text: problems_of(write(spec=text), registry())


@pytest.fixture
def problem(problems: Callable[[str], list[Problem]]) -> Callable[[str], Problem]:
    """The only problem of a spec with the given text."""

    def only(text: str) -> Problem:
        [found] = problems(text)
        return found

    return only
