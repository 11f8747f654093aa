"""A run that pauses for a sweep: it is killed at any moment, and pauses where it would have paused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.runs import results, steps, write_regression

from taskrecipe.run.pause import Pause
from taskrecipe.run.request import Request
from taskrecipe.run.train import run_request_events

SETTINGS = ("evaluate.every=3", "checkpoint.every=3")


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_run_that_was_killed_where_it_was_to_pause_takes_no_further_update(is_killed: bool, tmp_path: Path) -> None:
    """The kill comes after the checkpoint of its last evaluation, and before results.json says that it has paused."""
    spec, folder, pause = write_regression(tmp_path, "1.5"), tmp_path / "run", Pause(0.3)
    list(run_request_events(Request("train", str(spec), SETTINGS, str(folder), pause=pause)))
    assert (results(folder)["updates"], results(folder)["paused"]) == (3, True)
    if is_killed:
        (folder / "results.json").write_text(json.dumps({**results(folder), "status": "running", "paused": False}))
    list(run_request_events(Request("resume", str(folder), pause=pause)))
    assert (results(folder)["updates"], results(folder)["paused"], steps(folder)) == (3, True, [3])
    list(run_request_events(Request("resume", str(folder), pause=Pause(0.6))))
    assert (results(folder)["updates"], results(folder)["paused"]) == (6, True)
