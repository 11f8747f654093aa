from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.distributions import install

from taskrecipe.cli import main
from taskrecipe.plugins.registry import installed

ACME = '''
    from typing import Literal

    from pydantic import Field

    from taskrecipe.plugins.kinds import Callback, Optimizer, Technique
    from taskrecipe.recipe import Column, Recipe
    from taskrecipe.spec.table import Count, Table, TaskOptions


    class Inner(Table):
        depth: Count = Field(description="How deep.")


    class Words(Recipe):
        """Guess a word from its neighbors.

        More about it.
        """

        class Options(TaskOptions):
            name: Literal["near", "far"] = Field(description="Which neighbors.")
            reach: Count = Field(description="How far to look.")
            share: float = Field(default=0.5, gt=0.0, lt=1.0, description="Share of words to guess.")
            inner: Inner | None = Field(default=None, description="A table of its own.")

        def metrics(self):
            return {"hits": "max"} if self.options.name == "near" else {"misses": "min", "hits": "max"}

        def columns(self):
            return {"text": Column("a text"), "weight": Column("how much it counts", required=False)}


    class Sluggish(Optimizer):
        """Hardly moves."""

        drag: float = Field(ge=0.0, le=1.0, description="How much is held back.")


    class Blur(Technique):
        """Blurs a bit.

        More about it.
        """

        radius: Count = Field(default=2, description="How far.")


    class Bell(Callback):
        """Rings."""

        times: Count = Field(default=1, description="How often.")
'''


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the `recipe` command in this process."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["recipe", *map(str, arguments)])
        installed.cache_clear()
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        return Outcome(code, *capsys.readouterr())

    yield run
    installed.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on the path, to install distributions into."""
    folder = tmp_path / "site"
    folder.mkdir()
    known = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for module in set(sys.modules) - known:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(folder)):
            del sys.modules[module]


@pytest.fixture
def acme(site: Path) -> Path:
    """A distribution of somebody else, with a recipe and other plugins."""
    entry_points = {
        "recipes": {"words": "acme:Words"},
        "optimizers": {"sluggish": "acme:Sluggish"},
        "callbacks": {"bell": "acme:Bell"},
        "techniques": {"blur": "acme:Blur"},
    }
    install(site, "acme-recipes", entry_points, {"acme": ACME})
    return site
