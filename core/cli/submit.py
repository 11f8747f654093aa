"""`recipe submit`: hand a run to a batch system."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from taskrecipe.errors import UsageError
from taskrecipe.submission.submit import Submission
from taskrecipe.submission.submit import submit as submit_run
from taskrecipe.system.terminal import printable


def submit(
    target: Path, *, sets: Sequence[str], out: Path | None, sample: bool, slurm: bool, dry: bool, as_json: bool
) -> None:
    """Submit a spec or a run, and print its job and folder; with `dry`, only the script."""
    if not slurm:
        raise UsageError("name the batch system: --slurm is the one there is")
    done = submit_run(target, set=sets, out=out, sample=sample, dry=dry)
    if as_json:
        typer.echo(json.dumps({"job": done.job, "folder": str(done.folder), "script": done.script}))
    elif dry:
        typer.echo(done.script, nl=False)
    else:
        typer.echo("\n".join(_describe(done)))


def _describe(done: Submission) -> list[str]:
    folder = printable(str(done.folder))
    return [f"job {done.job} submitted", f"run folder: {folder}", f"see its state: recipe runs {folder}"]
