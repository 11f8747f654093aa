"""`predict`: answers for rows without targets, from files to files, from stdin to stdout, or in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.problems import Problems
from taskrecipe.errors import DataError
from taskrecipe.optional import HasParts
from taskrecipe.plugins.registry import installed
from taskrecipe.run.folder import RunFolder
from taskrecipe.use.outputs import Journal, Output, make_line, require_free_names, to_json_line
from taskrecipe.use.records import STDIN, WINDOW, Input, Record, as_records, read_stdin
from taskrecipe.use.trained import Trained, digest_weights, find_weights, load_spec
from taskrecipe.version import __version__

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Data
    from taskrecipe.use.predictor import Outcome, Wanted
    from taskrecipe.use.workers import Window


@dataclass(frozen=True)
class Plan:
    """What is predicted, with which weights, and how."""

    run: Path
    at: str = "best"
    settings: tuple[str, ...] = ()
    """Values of `[predict]` to replace, as KEY=VALUE."""
    batch_size: int | None = None
    task: str | None = None
    processes: int = 1
    skip_bad: bool = False
    nearest: str | None = None
    """A file whose nearest rows are part of each answer."""

    def fix_weights(self) -> Plan:
        """Return the plan with the checkpoint that `last` means now: a run that still trains moves it."""
        found = find_weights(RunFolder.open(self.run), self.at)
        return replace(self, at=f"step-{found.step}") if self.at == "last" else self

    def data(self) -> Data:
        """Return how tables are read: as the run's, or as those of the part that is predicted."""
        spec = load_spec(RunFolder.open(self.run), self.settings)
        if self.task is None:
            return spec.data
        recipe = installed().recipe(spec.recipe)(spec)
        parts = recipe.parts() if isinstance(recipe, HasParts) else {}
        return parts[self.task].spec.data if self.task in parts else spec.data

    def wanted(self, *, images: bool = False) -> Wanted:
        """Return how rows are predicted."""
        from taskrecipe.use.predictor import Wanted

        return Wanted(self.batch_size, self.task, images, vectors=self.nearest is not None)


def predict_file(
    plan: Plan, given: str, out: Path, on_progress: Callable[[int, int | None], None] | None = None
) -> int:
    """Predict the rows of `given` into `out`, and return how many were left out because something is wrong with them.

    If it was killed before, it goes on where it was. `on_progress` is told how many rows are done, and of how many.
    """
    output, report = Output.find(out), on_progress or (lambda *_: None)
    plan = plan.fix_weights()
    rows = Input.find(given, plan.data())
    with Journal(output, _describe(plan, rows, output)) as journal:
        done, total = journal.done, rows.count()
        report(done * WINDOW, total)
        todo = (window for window in _number_input(rows.windows()) if window.number >= done)
        for window, outcomes in _predict(plan, todo, images=output.kind == "folder"):
            if not plan.skip_bad:
                raise_problems(window.records, outcomes)
            journal.commit(window.number, window.records, outcomes, window.number * WINDOW)
            report(window.number * WINDOW + len(window.records), total)
        return journal.finish(rows.windows())


def predict_lines(plan: Plan, given: str) -> Iterator[bytes]:
    """Yield a line of JSON for each row of `given`, as soon as its window is done; - reads JSON lines from stdin."""
    windows = read_stdin() if given == STDIN else Input.find(given, plan.data()).windows()
    if given == STDIN:
        plan = replace(plan, processes=1)
    for window, outcomes in _predict(plan, _number_input(windows), images=False):
        good = len(outcomes) if plan.skip_bad else _count_good(outcomes)
        yield b"".join(
            to_json_line(make_line(record, outcome))
            for record, outcome in zip(window.records[:good], outcomes[:good], strict=True)
        )
        if good < len(outcomes):
            raise_problems(window.records, outcomes)


def _predict(plan: Plan, windows: Iterator[Window], *, images: bool) -> Iterator[tuple[Window, list[Outcome]]]:
    """Predict windows, and add the nearest rows of another file if the plan names one."""
    from taskrecipe.use.workers import predict_windows

    if plan.nearest is None:
        return predict_windows(plan, windows, images=images)
    from taskrecipe.use.neighbors import predict_with_neighbors

    return predict_with_neighbors(plan, windows, Input.find(plan.nearest, plan.data()))


def predict_rows(trained: Trained, rows: Iterable[Any] | str | Path, plan: Plan) -> Iterator[Any]:
    """Yield the answer for each row of a file, or of dictionaries. With `skip_bad`, that of a bad row is None."""
    from taskrecipe.use.predictor import Predictor

    with trained.on_device() as (accelerator, model):
        predictor = Predictor(trained.recipe, model, accelerator, plan.wanted())
        given = Input.find(str(rows), plan.data()) if isinstance(rows, (str, Path)) else as_records(rows)
        records, number = iter(given), 0
        while window := list(islice(records, WINDOW)):
            outcomes = predictor.predict(window, number)
            if not plan.skip_bad:
                raise_problems(window, outcomes)
            yield from (outcome.answer for outcome in outcomes)
            number += len(window)


def raise_problems(records: Sequence[Record], outcomes: Sequence[Outcome]) -> None:
    """Raise `DataError` with everything that is wrong with rows of a window."""
    problems = Problems()
    for record, outcome in zip(records, outcomes, strict=True):
        with problems.collect():
            if outcome.problem is not None:
                raise DataError(outcome.problem, place=record.place)
    problems.raise_found()


def _count_good(outcomes: Sequence[Outcome]) -> int:
    return next((number for number, outcome in enumerate(outcomes) if outcome.problem is not None), len(outcomes))


def _number_input(windows: Iterable[list[Record]]) -> Iterator[Window]:
    """Number the windows of the input, whose first row must leave room for the columns of an answer."""
    for window in number_windows(windows):
        if window.number == 0:
            require_free_names(window.records[:1])
        yield window


def number_windows(windows: Iterable[list[Record]]) -> Iterator[Window]:
    """Number windows from 0, and say which row each begins with."""
    from taskrecipe.use.workers import Window

    first = 0
    for number, records in enumerate(windows):
        yield Window(number, first, records)
        first += len(records)


def _describe(plan: Plan, rows: Input, output: Output) -> dict[str, Any]:
    """Return what the answers are a function of. Batch size and processes are not: they change nothing."""
    run = RunFolder.open(plan.run)
    return {
        "taskrecipe": __version__,
        "run": run.run_id,
        "weights": digest_weights(find_weights(run, plan.at)),
        "settings": [*sorted(plan.settings), f"task={plan.task}", f"nearest={plan.nearest}"],
        "input": rows.digest(),
        "output": output.kind,
    }
