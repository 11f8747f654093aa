"""`submit`: give a run its folder and its spec, and hand it to SLURM."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from taskrecipe.errors import UsageError
from taskrecipe.run import folder_names
from taskrecipe.run.environment import describe_spec_folder
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import ENVIRONMENT, JOB, JOB_SCRIPT, MARKER, RUNS, SPEC
from taskrecipe.run.request import Settings, as_assignments
from taskrecipe.run.sample_fallback import run_name
from taskrecipe.run.train import require_packages
from taskrecipe.spec.resolve import Resolved, resolve
from taskrecipe.submission.job_script import write_script

SUBMIT_SECONDS = 120.0
"""How long sbatch may take."""


@dataclass(frozen=True)
class Submission:
    """A run that was handed to a batch system, or would be."""

    folder: Path
    script: str
    job: str | None
    """The number of its job; None if it was not submitted."""


def submit(
    target: str | Path,
    *,
    set: Settings = (),
    out: str | Path | None = None,
    sample: bool = False,
    dry: bool = False,
) -> Submission:
    """Submit a spec, or the folder of a run that is to go on, to SLURM. With `dry`, only make the script.

    The run gets its folder and its spec now: what is changed in the spec later has no effect on it.
    """
    path, sets = Path(target), as_assignments(set)
    if (path / MARKER).exists():
        return _submit_run(path, sets, sample=sample or out is not None, dry=dry)
    resolved = resolve(path, sets, sample)
    require_packages(resolved.spec)
    name, wanted = run_name(resolved), None if out is None else Path(out)
    if dry:
        folder = _foresee_folder(name, wanted)
        return Submission(folder, write_script(resolved.spec.submit, folder), None)
    with RunFolder.create(name, wanted) as created:
        created.write_text(SPEC, resolved.to_toml())
        created.write_json(ENVIRONMENT, describe_spec_folder(resolved.folder, created.path))
        created.write_text(JOB_SCRIPT, write_script(resolved.spec.submit, created.path))
    try:
        return _hand_over(created.path, resolved)
    except BaseException:
        created.lock()
        created.discard()
        raise


def _submit_run(path: Path, sets: Sequence[str], *, sample: bool, dry: bool) -> Submission:
    """Submit a run that is there, so that it goes on."""
    others = [assignment for assignment in sets if not assignment.startswith("submit.")]
    if others or sample:
        what = f"--set {others[0]}" if others else "--out and --sample"
        raise UsageError(f"{path} holds a run, which goes on as it is: leave {what} out, or submit a spec")
    resolved = resolve(path / SPEC, sets)
    script = write_script(resolved.spec.submit, path)
    if dry:
        return Submission(path, script, None)
    with RunFolder.open(path) as folder:
        folder.lock()  # a run that is training can't be submitted too
        folder.write_text(JOB_SCRIPT, script)
    return _hand_over(path, resolved)


def _hand_over(folder: Path, resolved: Resolved) -> Submission:
    """Submit the script in a folder, and record the job there."""
    script = folder / JOB_SCRIPT
    job = _run_sbatch(script)
    submitted = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"system": "slurm", "job": job, "submitted": submitted, "requeue": resolved.spec.submit.requeue}
    RunFolder.open(folder).write_json(JOB, record)
    return Submission(folder, script.read_text("utf-8"), job)


def _run_sbatch(script: Path) -> str:
    """Submit a script, and return the number of its job."""
    if shutil.which("sbatch") is None:
        raise UsageError("there is no sbatch here, so nothing can be submitted; --dry only shows the script")
    command = ["sbatch", "--parsable", str(script.absolute())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SUBMIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"sbatch could not be run: {error}") from error
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UsageError(f"SLURM has refused the job: {reason}")
    return done.stdout.strip().partition(";")[0]  # the name of the cluster may follow


def _foresee_folder(name: str, out: Path | None) -> Path:
    """Return the folder that a new run would get."""
    if out is not None:
        return folder_names.resolve_out(out)
    folder_names.require_run_name(name)
    free = (path for path in folder_names.candidates(name) if not path.exists() or folder_names.is_unused(path))
    return next(free) if RUNS.is_dir() else RUNS / name
