"""After the last update: the exported weights are evaluated on what they were not yet, and the evidence is written.

The weights are those of the best evaluation. What that evaluation has found is reused. It is repeated only if it is
not there any more, because the run was resumed or because it took too much memory; then it must find the same again.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from taskrecipe.checkpoints.checkpoint import find_checkpoint
from taskrecipe.data.places import Place
from taskrecipe.recipe import evaluated_splits, final_splits
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import PREDICTIONS
from taskrecipe.run.prepare import Prepared
from taskrecipe.training.evaluation import Outcome
from taskrecipe.training.events import Event, FinalEvaluated, Warned
from taskrecipe.training.exchange import broadcast_json, wait_for_everyone
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_evaluations
from taskrecipe.use.assessment import Assessment
from taskrecipe.use.comparison import find_differences
from taskrecipe.use.evidence import Evidence, write_held_out

TOLERANCE = 1e-6
"""Relative difference between two evaluations of the same weights from which on it is reported."""


@dataclass
class Conclusion:
    """What is known about the exported weights at the end of a run."""

    loop: Loop
    prepared: Prepared
    folder: RunFolder
    spec_folder: Path
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of the splits that are evaluated only at the end."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % interval of each metric that is a function of rows."""
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """After how many updates the exported weights were taken."""
        best = self.loop.progress.best
        return best.step if best else self.loop.progress.step

    def events(self) -> Generator[Event, None, None]:
        """Restore the weights that are exported, evaluate them and write the evidence. All processes take part.

        After a signal it ends early. It is done again when the run is resumed.
        """
        start = time.perf_counter()
        self._restore_weights()
        outcomes = yield from self._repeat_best()
        final = yield from self._evaluate(final_splits(self.prepared.recipe))
        if self.loop.control.signum:
            return
        if final:
            self.metrics = {name: value for outcome in final for name, value in outcome.metrics.items()}
            yield FinalEvaluated(self.loop.progress.step, self.step, self.metrics, time.perf_counter() - start)
        if self.loop.accelerator.is_main_process:
            self._write_evidence([*outcomes, *final])
        self.seconds = time.perf_counter() - start

    def _restore_weights(self) -> None:
        if self.step != self.loop.progress.step:
            wait_for_everyone()  # the main process has committed every checkpoint by then
            self.loop.state.restore_weights(find_checkpoint(self.folder.checkpoints, f"step-{self.step}"))

    def _repeat_best(self) -> Generator[Event, None, list[Outcome]]:
        """Return what the best evaluation has found. Repeat it if that is not there, and compare the metrics."""
        loop = self.loop
        if not loop.spec.evaluate.predictions:
            return []
        kept = loop.best_outcomes if loop.best_outcomes and loop.best_outcomes[0] == self.step else None
        if broadcast_json(kept is not None):  # only the main process keeps them
            return kept[1] if kept else []
        outcomes = yield from self._evaluate(evaluated_splits(self.prepared.recipe))
        best = loop.progress.best
        known = best.metrics if best else loop.progress.metrics
        found = {name: value for outcome in outcomes for name, value in outcome.metrics.items()}
        for difference in find_differences(known, found, TOLERANCE):
            yield Warned(loop.progress.step, f"the weights of step {self.step}, evaluated again: {difference}")
        return outcomes

    def _evaluate(self, splits: list[str]) -> Generator[Event, None, list[Outcome]]:
        loop = self.loop
        evaluations = make_evaluations(self.prepared.recipe, self.prepared.rows, loop.accelerator, splits)
        return (yield from loop.evaluate_splits(evaluations))

    def _write_evidence(self, outcomes: list[Outcome]) -> None:
        spec, loaded, target = self.loop.spec, self.prepared.loaded, self.folder.path / PREDICTIONS
        write_held_out(loaded.held_out, target)
        for outcome in outcomes if spec.evaluate.predictions else []:
            split = outcome.split
            assessment = Assessment(self.prepared.recipe, self.prepared.rows[split], outcome)
            about = {"run": self.folder.run_id, "step": self.step, "data": loaded.fingerprint.get(split)}
            place = loaded.places.get(split, Place())
            limit = spec.evaluate.predictions
            Evidence(assessment, loaded.splits[split], place, self.spec_folder, limit, about).write(target)
            self.intervals |= assessment.intervals
