"""`recipe sweep --dry`: what a sweep would do, and its cost from one measured trial."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from taskrecipe.run import request
from taskrecipe.run.request import Request
from taskrecipe.run.train import measure_request
from taskrecipe.sweeps.folder import BASE
from taskrecipe.sweeps.plan import Planner
from taskrecipe.sweeps.settings import Settings
from taskrecipe.sweeps.space import Dimension, Space
from taskrecipe.system.quantities import format_duration


def measure_sweep(
    file: str | Path, *, set: request.Settings = (), sample: bool = False, parallel: int | None = None
) -> dict[str, str]:
    """Return what a sweep would do and cost. A few updates of its base are measured; nothing is kept."""
    changes = {"parallel": parallel} if parallel else {}
    settings = Settings.read(Path(file), request.as_assignments(set), sample=sample, kind="sweep", changes=changes)
    facts, seconds = _measure_base(settings)
    trial = {f"a trial: {name}": text for name, text in facts.items()}
    return {**_describe_plan(settings), **trial, **_sum_up(settings, seconds)}


def _measure_base(settings: Settings) -> tuple[dict[str, str], float]:
    with TemporaryDirectory(prefix="taskrecipe-") as scratch:
        base = Path(scratch) / BASE
        base.write_text(settings.text, encoding="utf-8")
        return measure_request(Request("dry", str(base), settings.trial_sets, sample=settings.wants_sample))


def _describe_plan(settings: Settings) -> dict[str, str]:
    sweep, planner = settings.sweep, Planner(settings.sweep, settings.direction)
    runs = f"{planner.count} trials" + (f" of {sweep.seeds} seeds" if sweep.seeds > 1 else "")
    facts = {
        "trials": f"{runs}, {sweep.parallel} at a time",
        "sampler": sweep.sampler,
        "space": "; ".join(map(_describe_dimension, Space.of(sweep).dimensions)),
        "decides": f"{settings.metric} ({settings.direction})",
    }
    if sweep.pruner == "halving":
        rungs = zip(count_rungs(planner), planner.shares, strict=True)
        facts["halving"] = ", then ".join(f"{count} to {share:.3g} of the updates" for count, share in rungs)
    elif sweep.pruner == "median":
        facts["median"] = "a trial pauses where it is worse than half of the earlier ones"
    return facts


def count_rungs(planner: Planner) -> list[int]:
    """Return how many trials train at each rung, if none fails."""
    counts = [planner.count]
    for _ in planner.shares[1:]:
        counts.append(max(1, counts[-1] // planner.sweep.reduction))
    return counts


def count_full_trials(planner: Planner) -> float:
    """Return how many trials from start to end take as many updates as the sweep."""
    done, total = 0.0, 0.0
    for count, share in zip(count_rungs(planner), planner.shares, strict=True):
        total, done = total + count * (share - done), share
    return total


def _sum_up(settings: Settings, seconds: float) -> dict[str, str]:
    planner = Planner(settings.sweep, settings.direction)
    full, seeds = count_full_trials(planner), settings.sweep.seeds
    training = seconds * full * seeds
    most = " at most" if settings.sweep.pruner == "median" else ""
    facts = {"updates": f"as many as {full * seeds:.3g} full runs have{most}"}
    facts["training"] = f"about {format_duration(training)}{most}, without evaluations and loading"
    if settings.sweep.parallel > 1:
        shared = format_duration(training / settings.sweep.parallel)
        facts["with parallel runs"] = f"about {shared}, where each has its own cores or accelerator"
    return facts


def _describe_dimension(dimension: Dimension) -> str:
    values = [f"{value:g}" if isinstance(value, float) else str(value) for _, value in dimension.ends()]
    return f"{dimension.key} {', '.join(values) if isinstance(dimension.given, list) else ' to '.join(values)}"
