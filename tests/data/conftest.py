"""Caches of their own for the tests of data."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test prepares out of the caches of whoever runs it, and of other tests."""
    import datasets

    folder = tmp_path_factory.mktemp("caches")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    monkeypatch.setenv("TASKRECIPE_CACHE", str(folder / "taskrecipe"))
