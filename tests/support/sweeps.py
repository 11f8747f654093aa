"""Small sweeps for tests to do things to, and what they come to."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from taskrecipe.run.lock import find_live_holder
from tests.support.commands import Zygote
from tests.support.runs import GLUE, write_spec

BASE = GLUE.replace("updates = 9", "updates = 18").replace("[log]\nevery = 1", "[log]\nevery = 5")

SPACE = """
[sweep.space]
"train.learning_rate" = { low = 1e-4, high = 2e-2, log = true }
"train.batch_size" = [8, 12]
"""


def write_sweep(folder: Path, text: str = "", space: str = SPACE, **settings: Any) -> Path:
    """A sweep in `folder` over a small spec that is there too. `text` is put before its table."""
    folder.mkdir(exist_ok=True)
    write_spec(folder, BASE)
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"trials": 4, **settings}.items()]
    path = folder / "sweep.toml"
    path.write_text('extends = "spec.toml"\n' + text + "[sweep]\n" + "\n".join(lines) + space)
    return path


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text())


def describe(folder: Path) -> list[Any]:
    """What two sweeps must have in common: every trial, its values, how far it came, and what it found."""
    found = facts(folder)
    trials = [
        [trial["number"], trial["values"], trial["state"], trial["value"], trial["updates"], trial["runs"][0]["curve"]]
        for trial in found["trials"]
    ]
    return [*trials, found["ranking"], found["rungs"], found["best"]["values"]]


def fingerprints(zygote: Zygote, folder: Path) -> dict[str, str]:
    """The bits of the last checkpoint of each run."""
    from tests.support.runs import bits

    return {run.name: bits(zygote, run) for run in sorted(folder.glob("trial-*")) if (run / "checkpoints").is_dir()}


def holders(folder: Path) -> dict[str, int]:
    """The processes that train the runs of a sweep now."""
    runs = [path for pattern in ("trial-*", "seed-*") for path in folder.glob(f".state/{pattern}")]
    return {run.name: holder["pid"] for run in runs if (holder := find_live_holder(run)) is not None}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
