"""The loop that trains every recipe: a generator of events, readable from top to bottom.

    while there are updates left:   evaluate if due  →  save if due  →  take an update

What is due follows from `Progress` alone, so a run that is resumed from a checkpoint needs no other information.
Nothing here knows which task it trains, or who receives the events. Listeners and signals ask for something through
`control`, which all processes agree on after each event.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.checkpoints.store import Checkpoint, Checkpoints, PartWriter
from taskrecipe.optional import SummarizesMetrics
from taskrecipe.plugins.kinds import MetricLrFactor
from taskrecipe.recipe import Direction
from taskrecipe.spec.spec import Every, Spec
from taskrecipe.training.control import Control
from taskrecipe.training.ema import evaluation_weights
from taskrecipe.training.evaluation import Evaluation, Outcome
from taskrecipe.training.events import End, EpochStart, Evaluated, Evaluating, Event, Saved, Start, Updated, Warned
from taskrecipe.training.gradients import Gradients
from taskrecipe.training.nonfinite import NonFiniteGuard
from taskrecipe.training.objective import Objective
from taskrecipe.training.sharding import set_mode, share_buffers
from taskrecipe.training.state import Progress, TrainState
from taskrecipe.training.throughput import Throughput
from taskrecipe.training.update import Update

MOST_KEPT_BYTES = 512 * 2**20
"""Of the best evaluation, what it has found is kept for the end of the run, unless it takes more memory."""


@dataclass
class Loop:
    """Everything that training needs. `run` yields what happens."""

    spec: Spec
    objective: Objective
    accelerator: Accelerator
    model: torch.nn.Module
    """The state's module, wrapped for this number of processes and precision."""
    state: TrainState
    gradients: Gradients
    total: int
    """The number of updates of the whole run."""
    per_epoch: int | None
    evaluations: list[Evaluation]
    best_metric: tuple[str, Direction]
    store: Checkpoints | PartWriter | None = None
    """Where checkpoints go; None in processes that write nothing."""
    control: Control = field(default_factory=Control)

    def __post_init__(self) -> None:
        self.guard = NonFiniteGuard(self.state.optimizer)
        self.throughput = Throughput(self.accelerator.device)
        self._saving: tuple[Future[Checkpoint], float] | None = None
        self.best_outcomes: tuple[int, list[Outcome]] | None = None
        """What the best evaluation has found, and its step; None if that was before the run was resumed."""

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return self.state.progress

    def run(self, resumed: bool = False) -> Iterator[Event]:
        """Train to the end, or until `control` says stop."""
        self._saved_at = self.progress.step if resumed else 0
        step = self.progress.step
        yield from self._send(Start(step, self.total, self.per_epoch, self.best_metric[0], step if resumed else None))
        set_mode(self.model, training=True)
        self.throughput.restart()
        self._lap_start = time.perf_counter()
        with closing(self.state.updates(self.progress.step)) as updates:
            while True:
                if self._evaluation_due():
                    yield from self._outside_training("evaluation", self.evaluate())
                if self._save_due():
                    yield from self._outside_training("saving", self._save())
                yield from self._report_commit()
                if self._is_over():
                    break
                if self._epoch_starts():
                    yield from self._send(EpochStart(self.progress.step, epoch=self._epoch(self.progress.step)))
                update = self.throughput.time_next(updates)
                yield self.take(update)
                # A callback's request counts at once; a signal's from when the processes know of it.
                if update.exchange.is_asked or self.spec.callbacks:
                    self.control.agree()
                if news := self.state.updates.cut.take_news():
                    yield from self._send(Warned(self.progress.step, news))
        yield from self._report_commit(wait=True)
        self._add_time("saving")
        yield self.end()

    def _send(self, event: Event) -> Iterator[Event]:
        """Yield an event, then let the processes agree on what listeners and signals have asked for."""
        yield event
        self.control.agree()

    def _outside_training(self, name: str, work: Iterator[Event]) -> Iterator[Event]:
        """Do other work than training, and count its time as such."""
        self.guard.check()
        self._add_time("training")
        yield from work
        self._add_time(name)
        self.throughput.restart()

    def _add_time(self, name: str) -> None:
        """Add the time since the last call to what was spent on `name`."""
        now, seconds = time.perf_counter(), self.progress.seconds
        seconds[name] = seconds.get(name, 0.0) + now - self._lap_start
        self._lap_start = now

    # One update -------------------------------------------------------------------------------------

    def take(self, update: Update) -> Updated:
        """Compute an update's gradients and change the weights, unless a number in it is not finite."""
        update.require_items()
        update.exchange.asks = lambda: self.control.is_asked
        update.seed()
        for effect in self.objective.effects:
            effect.before_update(update.number, self.state.module)
        learning_rate = self._set_learning_rate(update.number)
        update.compute_gradients()
        norm = self.gradients.clip(self.spec.train.clip_norm or float("inf"))
        self.guard.step(update, norm, learning_rate)
        self.state.optimizer.zero_grad()
        if self.state.ema is not None:
            self.state.ema.update()
        self.progress.step += 1
        # Of several processes each counts its own part, which is about as large as the others'.
        tokens = sum(batch.tokens for batch in update.batches) * self.accelerator.num_processes
        self.throughput.count(len(update.rows), tokens)
        numbers = self._read_update(update, norm) if self._log_due() else {}
        return Updated(self.progress.step, update.epoch, learning_rate, **numbers)

    def _set_learning_rate(self, number: int) -> float:
        """Set the learning rate of every group. It is a function of the update number, so it is never stepped."""
        factor = self.state.lr_factor(number)
        for group in self.state.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        return float(self.spec.train.learning_rate * factor)

    def _read_update(self, update: Update, norm: torch.Tensor) -> dict[str, Any]:
        """Read the numbers of a logged update from the device, and check those before it."""
        names = self.objective.term_names(update.counts)
        *terms, grad_norm = self.guard.check(update.whole_terms(names), norm)
        return {
            "loss": sum(terms),
            "terms": dict(zip(names, terms, strict=True)) if len(names) > 1 else None,
            "grad_norm": grad_norm,
            **self.throughput.read(),
        }

    # Evaluation and checkpoints ---------------------------------------------------------------------

    def evaluate(self) -> Iterator[Event]:
        """Evaluate every split. A signal ends it after the current batch; it is then still due after a resume."""
        start = time.perf_counter()
        outcomes = yield from self.evaluate_splits(self.evaluations)
        set_mode(self.model, training=True)
        if self.control.signum:
            return
        self.control.wants_evaluation = False
        metrics = {name: value for outcome in outcomes for name, value in outcome.metrics.items()}
        recipe = self.objective.recipe
        metrics |= recipe.summarize(metrics) if isinstance(recipe, SummarizesMetrics) else {}
        better = self.progress.record_evaluation(*self.best_metric, metrics, self.spec.evaluate.min_delta)
        if better:
            self._keep_outcomes(outcomes)
        self._follow_metric(metrics)
        seconds, epoch = time.perf_counter() - start, self._epoch(self.progress.step - 1)
        yield from self._send(Evaluated(self.progress.step, epoch, metrics, better, seconds))

    def evaluate_splits(self, evaluations: list[Evaluation]) -> Generator[Event, None, list[Outcome]]:
        """Evaluate splits with the weights that count, and return what was found; after a signal, only a part of it."""
        outcomes: list[Outcome] = []
        share_buffers(self.model)
        with evaluation_weights(self.state.module, self.state.optimizer, self.state.ema):
            for evaluation in evaluations:
                outcome = yield from self._evaluate_split(self._fit_to_memory(evaluation))
                outcomes += [outcome] if outcome else []
        return outcomes

    def _evaluate_split(self, evaluation: Evaluation) -> Generator[Event, None, Outcome | None]:
        """Evaluate one split, and return what was found; None after a signal."""
        with closing(evaluation.run(self.model)) as running:
            while not self.control.signum:
                try:
                    done = next(running)
                except StopIteration as finished:
                    outcome: Outcome = finished.value
                    return outcome
                yield from self._send(Evaluating(self.progress.step, evaluation.split, done, evaluation.batches))
        return None

    def _fit_to_memory(self, evaluation: Evaluation) -> Evaluation:
        """Return the evaluation in batches that fit into memory, where that is found out while training."""
        cut = self.state.updates.cut
        is_given = cut.is_fixed or self.spec.evaluate.batch_size is not None
        return evaluation if is_given else replace(evaluation, batch_size=cut.rows)

    def _keep_outcomes(self, outcomes: list[Outcome]) -> None:
        """Keep what the best evaluation has found: its evidence is written at the end of the run."""
        wanted = self.accelerator.is_main_process and self.spec.evaluate.predictions > 0
        fits = wanted and sum(outcome.size for outcome in outcomes) <= MOST_KEPT_BYTES
        self.best_outcomes = (self.progress.step, outcomes) if fits else None

    def _follow_metric(self, metrics: dict[str, float]) -> None:
        """Show the metric to a schedule that follows it. Lower is always better there."""
        if isinstance(self.state.lr_factor, MetricLrFactor):
            name, direction = self.best_metric
            self.state.lr_factor.observe(metrics[name] if direction == "min" else -metrics[name])

    def _save(self) -> Iterator[Event]:
        """Begin a checkpoint. The store finishes it in the background."""
        yield from self._report_commit(wait=True)
        start, best = time.perf_counter(), self.progress.best
        if self.store is not None:
            commit = self.store.begin(self.progress.step, self.state.contents(), best=best.step if best else None)
            self._saving = commit, time.perf_counter() - start
        self._saved_at, self.control.wants_save = self.progress.step, False

    def _report_commit(self, wait: bool = False) -> Iterator[Event]:
        """Yield an event for the checkpoint that was begun, once it is on disk. Raise its error if it failed."""
        if wait and self.store is not None:
            self.store.wait()
        if self._saving is not None and self._saving[0].done():
            (commit, stalled), self._saving = self._saving, None
            saved = commit.result()
            yield Saved(saved.step, saved.path.name, saved.bytes, round(stalled, 4))

    # What is due ------------------------------------------------------------------------------------

    def _evaluation_due(self) -> bool:
        step = self.progress.step
        if step == self.progress.evaluated or self.control.signum or not self.evaluations:
            return False
        return self._is_over() or self.control.wants_evaluation or self._is_multiple(self.spec.evaluate.every)

    def _save_due(self) -> bool:
        step, best = self.progress.step, self.progress.best
        if step == self._saved_at:
            return False
        is_best = best is not None and best.step == step
        return self._is_over() or is_best or self.control.wants_save or self._is_multiple(self.spec.checkpoint.every)

    def _is_multiple(self, every: Every | str) -> bool:
        length = {"epoch": self.per_epoch, "end": None}[every] if isinstance(every, str) else every
        return length is not None and self.progress.step > 0 and self.progress.step % length == 0

    def _log_due(self) -> bool:
        step = self.progress.step
        return step % self.spec.log.every == 0 or step == 1 or step == self.total

    def _is_over(self) -> bool:
        return self.progress.step >= self.total or self.control.stopping is not None or self._out_of_patience()

    def _out_of_patience(self) -> bool:
        patience = self.spec.evaluate.patience
        return patience is not None and self.progress.without_better >= patience

    @property
    def is_stopped(self) -> bool:
        """Whether the run has stopped before its end, to be resumed later."""
        is_done = self.progress.step >= self.total or self._out_of_patience()
        return self.control.signum is not None or (self.control.paused and not is_done)

    def _epoch(self, update: int) -> int:
        return max(update, 0) // self.per_epoch if self.per_epoch else 0

    def _epoch_starts(self) -> bool:
        return self.progress.step % self.per_epoch == 0 if self.per_epoch else self.progress.step == 0

    def end(self) -> End:
        """Return how the run ended, and why. A run stopped by patience or a callback counts as finished."""
        step, reason = self.progress.step, self.control.stopping or ""
        if self.is_stopped:
            return End(step, "stopped", reason)
        if step >= self.total:
            reason = "all updates taken"
        elif self._out_of_patience():
            reason = f"no better {self.best_metric[0]} in {self.spec.evaluate.patience} evaluations"
        return End(step, "finished", reason)
