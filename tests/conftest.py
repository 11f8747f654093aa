"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.commands import Zygote

ROOT = Path(__file__).parents[1]

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may wait for a hub it did not make itself
os.environ["PYTHONPATH"] = str(ROOT)  # processes that tests start find `tests.support` too

# The same examples every time, so that a change is what breaks a test; `make chaos` looks for new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("searching")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts `recipe` commands without importing torch each time."""
    cache = tmp_path_factory.mktemp("cache")
    os.environ["TASKRECIPE_CACHE"] = str(cache)
    process = Zygote(tmp_path_factory.mktemp("output"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that may lie beside the repository; tests that need it skip where it is missing."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data beside the repository")
    return folder
