"""Runs in each of several processes, one after the other: `python -m tests.support.shard_process PLAN`.

The plan is a JSON list of steps, each a spec or a folder to resume and the settings of that run.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

from torch import distributed

import taskrecipe
from taskrecipe.training.exchange import wait_for_everyone


def run_step(step: dict[str, Any]) -> None:
    """Train, or continue a copy of another run as it was after some update."""
    out, settings = Path(step["out"]), step["set"]
    if "spec" in step:
        taskrecipe.train(step["spec"], set=settings, out=out, sample=step.get("sample", False), quiet=True)
        return
    if distributed.get_rank() == 0:
        shutil.copytree(step["resume"], out)
        for path in (out / "checkpoints").glob("step-*"):
            if int(path.name.removeprefix("step-")) > step["after"]:
                shutil.rmtree(path)
    wait_for_everyone()
    taskrecipe.resume(out, set=settings, quiet=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    for step in json.loads(Path(sys.argv[1]).read_text()):
        run_step(step)
    distributed.destroy_process_group()
