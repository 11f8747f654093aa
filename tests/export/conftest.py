from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import train, write_spec

ROOT = Path(__file__).parents[2]
SPECS = {path.stem: path for path in (ROOT / "specs").rglob("*.toml")}

SHORT = ("train.updates=2", "evaluate.every=2", "checkpoint.every=2", "schedule.warmup=0")


@pytest.fixture(scope="session")
def sample_run(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Train a bundled spec on sample data for two updates, once for all tests that ask for it."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            sets = [argument for value in SHORT for argument in ("--set", value)]
            done = zygote.run("run", str(SPECS[name]), "--sample", *sets, "--out", str(folder / "run"), cwd=folder)
            assert done.code == 0, done.stderr
            made[name] = folder / "run"
        return made[name]

    return make


@pytest.fixture(scope="session")
def glue_run(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on files, with a local base model."""
    return train(zygote, write_spec(tmp_path_factory.mktemp("glue")), "run", "--set", "train.updates=3")
