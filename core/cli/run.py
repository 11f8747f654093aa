"""`recipe run` and `recipe resume`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from taskrecipe.core.errors import UsageError
from taskrecipe.core.launch import join, launch, launched
from taskrecipe.core.spec.resolve import Resolved, resolve
from taskrecipe.core.startup import uncollected

if TYPE_CHECKING:
    from accelerate import Accelerator

    from taskrecipe.core.runfolder import RunFolder

SAMPLE_BANNER = """\
!! Training on SAMPLE data with a tiny model, made on the spot: {reason}.
!! The run works as a real one would; its numbers say nothing about the task."""


def run(
    path: Path,
    *,
    sets: Sequence[str],
    out: Path | None,
    resume: bool,
    sample: bool,
    dry: bool,
    processes: int | None,
) -> None:
    """Train what a spec describes, in a new folder or, with `resume`, going on in an old one."""
    sets = _with_processes(sets, processes)
    resolved = resolve(path, sets, sample)
    if _launch_if_many(
        resolved, ["run", str(path), *_options(sets=sets, out=out, resume=resume, sample=sample, dry=dry)]
    ):
        return
    why_not = _why_not(resolved)
    accelerator = _start(resolved)
    why_not = _agreed(accelerator, why_not)
    if why_not:
        resolved = resolve(path, sets, sample=True)
    _warn_of_sample(accelerator, resolved, why_not)
    if dry:
        from taskrecipe.core.plan import print_plan

        print_plan(resolved, accelerator)
        return
    _train(resolved, _folder(accelerator, resolved, out, resume), accelerator, resume=resume, allow=())


def resume(folder: Path, *, sets: Sequence[str], allow: Sequence[str], processes: int | None) -> None:
    """Go on with a run from its newest sound checkpoint."""
    from taskrecipe.core.runfolder import SPEC, RunFolder

    sets = _with_processes(sets, processes)
    place = RunFolder.open(folder)
    if not (place.path / SPEC).exists():
        raise UsageError(
            f"{folder} has no {SPEC} yet: nothing was begun there; start with `recipe run SPEC --out {folder}`"
        )
    resolved = resolve(place.path / SPEC, sets)
    if _launch_if_many(resolved, ["resume", str(folder), *_options(sets=sets, allow=allow)]):
        return
    _why_not(resolved)
    accelerator = _start(resolved)
    if accelerator.is_main_process:
        place.lock()
    _warn_of_sample(accelerator, resolved, None)
    _train(resolved, place, accelerator, resume=True, allow=allow)


def _train(
    resolved: Resolved, folder: RunFolder, accelerator: Accelerator, *, resume: bool, allow: Sequence[str]
) -> None:
    from taskrecipe.core.environment import describe
    from taskrecipe.core.run import Run
    from taskrecipe.core.runfolder import ENVIRONMENT, SPEC

    with folder:
        if accelerator.is_main_process:
            kept = resolved.path.read_text("utf-8") if resolved.path == folder.path / SPEC else None
            folder.write_text(SPEC, resolved.to_toml(kept))
            folder.write_json(ENVIRONMENT, describe(resolved.path.parent))
        results = Run(resolved, folder, accelerator).train(resume=resume, allow=allow)
    best = results["best"]
    if best:
        _say(accelerator, f"best {best['metric']} {best['value']:.4f} after update {best['step']}")
    _say(accelerator, f"run folder: {folder.path}")


def _with_processes(sets: Sequence[str], processes: int | None) -> list[str]:
    return [*sets, *([f"launch.processes={processes}"] if processes else [])]


def _options(**values: object) -> list[str]:
    """The command line that stands for these options."""
    words: list[str] = []
    for name, value in values.items():
        flag = {"sets": "--set"}.get(name, f"--{name}")
        if isinstance(value, bool):
            words += [flag] if value else []
        elif isinstance(value, (list, tuple)):
            words += [word for item in value for word in (flag, str(item))]
        elif value is not None:
            words += [flag, str(value)]
    return words


def _launch_if_many(resolved: Resolved, arguments: list[str]) -> bool:
    """Start the processes the spec asks for, unless this is one of them; what must be installed, is."""
    processes = resolved.spec.launch.processes
    resolved.spec.optimizer.require()
    if resolved.spec.track is not None:
        resolved.spec.track.require()
    if launched():
        join()
        return False
    if processes == 1:
        return False
    code = launch(processes, arguments)
    if code:
        raise typer.Exit(code)
    return True


def _start(resolved: Resolved) -> Accelerator:
    with uncollected():
        from taskrecipe.core.training.assembly import make_accelerator

    accelerator = make_accelerator(resolved.spec)
    parts = resolved.spec.train.accumulate * accelerator.num_processes
    if resolved.spec.train.batch_size % parts:
        raise UsageError(
            f"[train].batch_size = {resolved.spec.train.batch_size} can't be split over {accelerator.num_processes} "
            f"processes with accumulate = {resolved.spec.train.accumulate}: it must be a multiple of {parts}"
        )
    return accelerator


def _why_not(resolved: Resolved) -> str | None:
    """Why data or model can't be had, where the spec then wants the sample; where it doesn't, that is an error."""
    from taskrecipe.core.data.load import missing

    return None if resolved.spec.data.sample else missing(resolved.spec)


def _warn_of_sample(accelerator: Accelerator, resolved: Resolved, why_not: str | None) -> None:
    if resolved.spec.data.sample:
        _say(accelerator, SAMPLE_BANNER.format(reason=why_not or "the spec or the command line asks for it"))


def _agreed(accelerator: Accelerator, answer: str | None) -> str | None:
    """The main process's answer, in every process: a hub may be within reach of one and not of another."""
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([answer])[0] if accelerator.num_processes > 1 else answer


def _folder(accelerator: Accelerator, resolved: Resolved, out: Path | None, resume: bool) -> RunFolder:
    """The run's folder, which the main process makes or finds for all."""
    from taskrecipe.core.runfolder import RunFolder

    if not accelerator.is_main_process:
        return RunFolder.open(Path(_agreed(accelerator, None) or ""))
    name = resolved.spec.name or resolved.path.stem
    name = f"{name}-sample" if resolved.spec.data.sample and not name.endswith("-sample") else name
    former = RunFolder.latest(name, out) if resume else None
    if former:
        former.lock()
    folder = former or RunFolder.create(name, out)
    _agreed(accelerator, str(folder.path))
    return folder


def _say(accelerator: Accelerator, message: str) -> None:
    if accelerator.is_main_process:
        print(message, file=sys.stderr, flush=True)
