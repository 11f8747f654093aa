"""Whatever a kill leaves in a run's folder, the run goes on from there and ends as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.crash_states import crash_states, go_on
from tests.support.runs import GLUE, log, write_spec

from taskrecipe import Run, train
from taskrecipe.checkpoints.checkpoint import find_checkpoint
from taskrecipe.checkpoints.fingerprint import fingerprint

SHORT = GLUE.replace("updates = 9", "updates = 3").replace("keep = 2", "keep = 1")


def test_a_run_goes_on_from_every_state_that_a_kill_can_leave(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SHORT)
    reference = describe(train(spec, out=tmp_path / "reference", quiet=True))
    states = crash_states(spec, tmp_path / "run")
    assert len(states) > 40
    require_same(spec, states, reference)


@pytest.mark.chaos
def test_a_run_that_is_killed_twice_goes_on_too(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SHORT)
    reference = describe(train(spec, out=tmp_path / "reference", quiet=True))
    for state in crash_states(spec, tmp_path / "run")[::7]:
        require_same(spec, crash_states(spec, state), reference)


def require_same(spec: Path, states: list[Path], reference: dict[str, object]) -> None:
    different = {}
    for state in states:
        found = describe(go_on(spec, state))
        if found != reference:
            different[state.name] = {key: (found[key], reference[key]) for key in found if found[key] != reference[key]}
        shutil.rmtree(state)
    assert different == {}


def describe(run: Run) -> dict[str, object]:
    """What must be the same however often a run was killed."""
    checkpoints = run.folder / "checkpoints"
    files = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    return {
        "files": files,
        "bits": {name: fingerprint(find_checkpoint(checkpoints, name).path) for name in ("last", "best")},
        "results": {key: run.results[key] for key in ("status", "best", "final", "updates")},
        "updates": [line["step"] for line in log(run.folder, "update")],
        "evaluations": [line["metrics"] for line in log(run.folder, "evaluate")],
    }
