"""Evaluating a trained run again: on what it was evaluated on, on another split, or on other files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from taskrecipe.data.load import Loaded, load_files, load_splits
from taskrecipe.data.places import Place
from taskrecipe.errors import UsageError
from taskrecipe.optional import SummarizesMetrics
from taskrecipe.recipe import evaluated_splits
from taskrecipe.remote.urls import is_url, restore_url
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import ENVIRONMENT, PREDICTIONS, SPEC
from taskrecipe.spec.sources import read_source
from taskrecipe.use.comparison import find_differences
from taskrecipe.use.groups import Group, score_groups
from taskrecipe.use.trained import Trained, load_trained

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from taskrecipe.recipe import Splits
    from taskrecipe.use.assessment import Assessment

MOST_ROWS = 20_000
"""Rows of a split that evidence is written about, where the spec asks for none and the caller does."""

Progress = Callable[[str, int, int], None]
"""Is called with the split, the batches that are done and all batches."""


@dataclass(frozen=True)
class RunEvaluation:
    """What an evaluation of a trained run has measured."""

    run: str
    """The run's name."""
    at: str
    step: int | None
    """After how many updates the weights were taken."""
    rows: dict[str, int]
    """The number of rows of each split."""
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    """The 95 % bootstrap interval of each metric that is a function of rows."""
    resamples: dict[str, int]
    """How often the rows of each split were drawn again for its intervals."""
    logged: dict[str, float]
    """What the run has logged of these metrics for these weights."""
    differences: list[str]
    """Each metric that is not as it was logged, with both values."""
    changed_data: list[str]
    """The splits whose rows are not those of the run any more."""
    by: dict[str, Group] = field(default_factory=dict)
    """The metrics of the rows with each value of the column that was asked for."""
    evidence: list[str] = field(default_factory=list)
    """The files that were written."""
    warnings: list[str] = field(default_factory=list)

    @property
    def equal_to_log(self) -> bool | None:
        """Whether every metric is as it was logged, to the last digit; None if nothing was logged to compare with."""
        return not self.differences if self.logged else None

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        groups = {value: {**vars(group)} for value, group in self.by.items()}
        return {**vars(self), "equal_to_log": self.equal_to_log, "by": groups}


def evaluate_run(
    folder: str | Path,
    *,
    at: str = "best",
    split: str | None = None,
    data: str | Path | Sequence[str | Path] | None = None,
    by: str | None = None,
    evidence: str | Path | None = None,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> RunEvaluation:
    """Evaluate a run's weights on its own splits, in the same batches as in training; on `split`; or on files.

    `by` names a column: the metrics of the rows with each of its values are computed too. Evidence about the exported
    weights is written into the run's folder if it is not there yet, and that about other weights only into the folder
    `evidence`. Two numbers are the same if they differ by no more than `tolerance`.
    """
    if split is not None and data is not None:
        raise UsageError("an evaluation takes a split of the run, or files with other data, not both")
    trained = load_trained(folder, at)
    with TemporaryDirectory(prefix="taskrecipe-") as temporary, _use_threads(_read_environment(trained)):
        loaded = _load_rows(trained, split, data, Path(temporary))
        with trained.on_device() as (accelerator, model):
            assess = Assessor(trained, accelerator, model, progress)
            assessments = assess(loaded)
            groups = score_groups(loaded, assessments, by, assess) if by else {}
            intervals = {name: found for one in assessments for name, found in one.intervals.items()}
    written = _write_evidence(trained, loaded, assessments, evidence)
    metrics = {name: value for one in assessments for name, value in one.outcome.metrics.items()}
    if isinstance(trained.recipe, SummarizesMetrics) and split is None and data is None:
        metrics |= trained.recipe.summarize(metrics)
    logged = {} if data is not None else _read_logged(trained, metrics)
    return RunEvaluation(
        run=trained.folder.resolve().name,
        at=at,
        step=trained.step,
        rows={one.split: one.size for one in assessments},
        metrics=metrics,
        intervals=intervals,
        resamples={one.split: one.resample_count for one in assessments},
        logged=logged,
        differences=find_differences(logged, metrics, tolerance),
        changed_data=[] if data is not None else _find_changed_data(trained, loaded),
        by=groups,
        evidence=[str(path) for path in written],
        warnings=loaded.warnings,
    )


class Assessor:
    """Evaluates rows with a trained model. It can be called again and again."""

    def __init__(
        self, trained: Trained, accelerator: Accelerator, model: torch.nn.Module, progress: Progress | None
    ) -> None:
        self.trained, self.accelerator, self.model, self.progress = trained, accelerator, model, progress

    def __call__(self, loaded: Loaded) -> list[Assessment]:
        """Preprocess and evaluate every split."""
        from taskrecipe.training.evaluation import finish
        from taskrecipe.training.setup import make_evaluations
        from taskrecipe.use.assessment import Assessment

        rows, recipe = self._preprocess(loaded), self.trained.recipe
        found = []
        for evaluation in make_evaluations(recipe, rows, self.accelerator, list(rows)):
            split, batches = evaluation.split, evaluation.batches

            def report(done: int, split: str = split, batches: int = batches) -> None:
                if self.progress is not None:
                    self.progress(split, done, batches)

            outcome = finish(replace(evaluation, keeps_losses=True).run(self.model), report)
            found.append(Assessment(recipe, evaluation.rows, outcome))
        return found

    def _preprocess(self, loaded: Loaded) -> Splits:
        from taskrecipe.data.cache import preprocess_splits
        from taskrecipe.system.python_warnings import collect_warnings

        with collect_warnings() as notes, loaded.locate_rows():
            rows = preprocess_splits(self.trained.recipe, loaded.splits, self.trained.source)
        loaded.warnings += notes
        return rows


def _load_rows(trained: Trained, split: str | None, data: Any, temporary: Path) -> Loaded:
    """Load the rows to evaluate, and check them."""
    recipe = trained.recipe
    if data is None:
        return load_splits(recipe, evaluated_splits(recipe) if split is None else [split], temporary / "sample")
    paths = [path for given in ([data] if isinstance(data, str | Path) else data) for path in _find_data(given)]
    if not paths:
        raise UsageError("there is no file to evaluate on")
    return load_files(recipe, f"data-{paths[0].stem}", paths)


def _find_data(given: str | Path) -> list[Path]:
    """Return the files that one argument names. A URL is downloaded."""
    if not is_url(given):
        return [Path(given).expanduser().absolute()]
    from taskrecipe.remote.downloads import fetch_copies

    return fetch_copies(restore_url(given), "the data to evaluate on")


@contextmanager
def _use_threads(environment: dict[str, Any]) -> Iterator[None]:
    """Compute with as many threads as the run did: another number may change the last digits of a sum."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(environment.get("threads") or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _read_environment(trained: Trained) -> dict[str, Any]:
    """Return environment.json; nothing if it is not there."""
    if not (trained.folder / ENVIRONMENT).is_file():
        return {}
    return dict(RunFolder.open(trained.folder).read_json(ENVIRONMENT))


def _find_changed_data(trained: Trained, loaded: Loaded) -> list[str]:
    """Return the splits whose rows have another fingerprint than when the run read them."""
    then = _read_environment(trained).get("data", {})
    return [split for split, now in loaded.fingerprint.items() if split in then and then[split] != now]


def _read_logged(trained: Trained, metrics: dict[str, float]) -> dict[str, float]:
    """Return what the log says about these weights, of the metrics that were measured. Null stands for NaN."""
    logged: dict[str, float] = {}
    for record in RunFolder.open(trained.folder).read_log():
        step = {"evaluate": record.get("step"), "final": record.get("weights")}.get(record.get("event", ""))
        if step is not None and step == trained.step:
            logged |= record.get("metrics", {})
    nothing = float("nan")
    return {name: nothing if logged[name] is None else logged[name] for name in metrics if name in logged}


def _write_evidence(
    trained: Trained, loaded: Loaded, assessments: list[Assessment], folder: str | Path | None
) -> list[Path]:
    """Write evidence into `folder`; without one, into the run's, if it is about the exported weights and not there."""
    from taskrecipe.use.evidence import Evidence

    run, limit = RunFolder.open(trained.folder), trained.spec.evaluate.predictions
    target = Path(folder) if folder is not None else run.path / PREDICTIONS
    is_exported, written = trained.weights == run.model, []
    for one in assessments:
        if folder is not None or (is_exported and limit and not _is_written(target, one, loaded)):
            about = {"run": run.run_id, "step": trained.step, "data": loaded.fingerprint.get(one.split)}
            place = loaded.places.get(one.split, Place())
            base = read_source(run.path / SPEC).folder
            rows = loaded.splits[one.split]
            written += Evidence(one, rows, place, base, limit or MOST_ROWS, about).write(target)
    return written


def _is_written(target: Path, assessment: Assessment, loaded: Loaded) -> bool:
    """Return whether there is evidence about the same rows already. A run writes it at its end."""
    from taskrecipe.use.evidence import read_about

    about = read_about(target, assessment.split)
    return about is not None and about.get("data") == loaded.fingerprint.get(assessment.split)
