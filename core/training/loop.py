"""The loop that trains every recipe: a generator of events, readable top to bottom.

    while there are updates left:   evaluate if due  →  save if due  →  take an update

What is due is decided from `Progress` alone, so a run that goes on from a checkpoint falls into step by itself.
Nothing here knows which task it trains, nor who listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from taskrecipe.core.plugins import MetricRate
from taskrecipe.core.recipe import Direction, Recipe
from taskrecipe.core.spec.spec import Every, Spec
from taskrecipe.core.training.averages import MovingAverage, evaluation_weights
from taskrecipe.core.training.control import Control
from taskrecipe.core.training.evaluation import Evaluation
from taskrecipe.core.training.events import End, EpochStart, Evaluated, Evaluating, Event, Saved, Start, Updated
from taskrecipe.core.training.finite import FiniteGuard
from taskrecipe.core.training.meters import Meters
from taskrecipe.core.training.progress import Progress
from taskrecipe.core.training.randomness import Purpose, seed_everything
from taskrecipe.core.training.update import Update, Updates

if TYPE_CHECKING:
    from taskrecipe.core.training.streaming import StreamedUpdates


@dataclass
class Loop:
    """Everything a run is made of. `run` yields what happens; `control` is how listeners answer."""

    spec: Spec
    recipe: Recipe
    accelerator: Accelerator
    module: torch.nn.Module
    """The model itself, whose weights are saved."""
    model: torch.nn.Module
    """The same, wrapped for this number of processes and precision."""
    optimizer: Any
    rate: Callable[[int], float] | MetricRate
    updates: Updates | StreamedUpdates
    """The updates from a given number on."""
    total: int
    """How many updates the whole run has."""
    per_epoch: int | None
    evaluations: list[Evaluation]
    best_metric: tuple[str, Direction]
    save: Callable[[], Future[Saved] | None] = lambda: None
    """Begins a checkpoint of this moment; None where nothing is written."""
    progress: Progress = field(default_factory=Progress)
    average: MovingAverage | None = None
    control: Control = field(default_factory=Control)

    def __post_init__(self) -> None:
        self._saving: Future[Saved] | None = None
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def run(self, resumed: bool = False) -> Iterator[Event]:
        """Train to the end, or until `control` says stop."""
        self._saved_at = self.progress.step if resumed else 0
        yield from self._tell(
            Start(self.progress.step, self.total, self.per_epoch, self.progress.step if resumed else None)
        )
        pending = self.updates(self.progress.step)
        meters, guard = Meters(self.accelerator.device), FiniteGuard(self.optimizer)
        self.model.train()
        self._lap_began = time.perf_counter()
        while True:
            if self._evaluation_due():
                guard.settle()
                self._lap("training")
                yield from self._evaluate()
                self._lap("evaluation")
                meters.restart()
            if self._save_due():
                guard.settle()
                self._lap("training")
                yield from self._save()
                self._lap("saving")
                meters.restart()
            yield from self._committed()
            if self._over():
                break
            if self._epoch_begins():
                yield from self._tell(EpochStart(self.progress.step, epoch=self._epoch(self.progress.step)))
            yield from self._tell(self.take(meters.timed(pending), meters, guard))
        yield from self._committed(wait=True)
        self._lap("saving")
        yield End(self.progress.step, *self._outcome())

    def _tell(self, event: Event) -> Iterator[Event]:
        """Let listeners hear an event; what any process was asked meanwhile, counts from then on in all."""
        yield event
        self.control.agree()

    def _lap(self, spent_on: str) -> None:
        """Book the time since the last call."""
        now, seconds = time.perf_counter(), self.progress.seconds
        seconds[spent_on] = seconds.get(spent_on, 0.0) + now - self._lap_began
        self._lap_began = now

    # One update -------------------------------------------------------------------------------------

    def take(self, update: Update, meters: Meters, guard: FiniteGuard) -> Updated:
        """Compute an update's gradients and move the weights, unless a number in it is not finite."""
        update.require_items()
        seed_everything(
            self.accelerator.device,
            Purpose.UPDATE,
            self.spec.seed,
            update.number,
            self.accelerator.process_index,
        )
        learning_rate = self._set_learning_rate(update.number)
        self.recipe.backward(self.model, update)
        norm = self._clip_gradients()
        guard.step(update, norm, learning_rate)
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update()
        self.progress.step += 1
        meters.count(len(update.rows))
        numbers = self._read(update, norm, meters) if self._log_due() else {}
        return Updated(self.progress.step, update.epoch, learning_rate, **numbers)

    def _set_learning_rate(self, number: int) -> float:
        """The learning rate is a function of the update number, so it is set, not stepped."""
        factor = self.rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        return float(self.spec.train.learning_rate * factor)

    def _clip_gradients(self) -> torch.Tensor:
        """Bound the gradient's norm, and return what it was."""
        limit = self.spec.train.clip_norm or float("inf")
        norm: torch.Tensor = self.accelerator.clip_grad_norm_(self.parameters, limit)
        return norm

    def _read(self, update: Update, norm: torch.Tensor, meters: Meters) -> dict[str, Any]:
        """Read this update's numbers off the device: the only place in the loop that waits for it."""
        names, nothing = sorted(update.totals), torch.zeros((), device=self.accelerator.device)
        values = torch.stack([update.terms.get(name, nothing).float() for name in names])
        if self.accelerator.num_processes > 1:
            values = self.accelerator.reduce(values, "sum")
        *terms, grad_norm = torch.cat([values, norm.detach().float().reshape(1)]).tolist()
        return {
            "loss": sum(terms),
            "terms": dict(zip(names, terms, strict=True)) if len(names) > 1 else None,
            "grad_norm": grad_norm,
            **meters.read(),
        }

    # Evaluation and checkpoints ---------------------------------------------------------------------

    def _evaluate(self) -> Iterator[Event]:
        """Measure every split. A signal ends it after the batch at hand; it stays due for when the run resumes."""
        start = time.perf_counter()
        metrics: dict[str, float] = {}
        with evaluation_weights(self.module, self.optimizer, self.average):
            for evaluation in self.evaluations:
                metrics |= yield from self._measure(evaluation)
                if self.control.signum:
                    break
        self.model.train()
        if self.control.signum:
            return
        self.control.wants_evaluation = False
        metrics |= self.recipe.summarize(metrics)
        better = self.progress.note(*self.best_metric, metrics, self.spec.evaluate.min_delta)
        self._follow(metrics)
        seconds = time.perf_counter() - start
        epoch = self._epoch(self.progress.step - 1)
        yield from self._tell(Evaluated(self.progress.step, epoch, metrics, better, seconds))

    def _measure(self, evaluation: Evaluation) -> Generator[Event, None, dict[str, float]]:
        """Measure one split, telling of each batch."""
        running = evaluation.run(self.model)
        while True:
            try:
                done = next(running)
            except StopIteration as finished:
                numbers: dict[str, float] = finished.value
                return numbers
            yield from self._tell(Evaluating(self.progress.step, evaluation.split, done, evaluation.batches))
            if self.control.signum:
                return {}

    def _follow(self, metrics: dict[str, float]) -> None:
        """Let a schedule that follows a metric see it, lower always being better."""
        if isinstance(self.rate, MetricRate):
            name, direction = self.best_metric
            self.rate.observe(metrics[name] if direction == "min" else -metrics[name])

    def _save(self) -> Iterator[Event]:
        """Begin a checkpoint; the disk is waited for beside the training."""
        yield from self._committed(wait=True)
        self._saving = self.save()
        self._saved_at, self.control.wants_save = self.progress.step, False

    def _committed(self, wait: bool = False) -> Iterator[Event]:
        """Tell of the checkpoint that was begun, once it is on disk; what went wrong with it is raised here."""
        if self._saving is not None and (wait or self._saving.done()):
            saved, self._saving = self._saving.result(), None
            yield saved

    # What is due ------------------------------------------------------------------------------------

    def _evaluation_due(self) -> bool:
        step = self.progress.step
        if step == self.progress.evaluated or self.control.signum or not self.evaluations:
            return False
        return self._over() or self.control.wants_evaluation or self._falls_on(self.spec.evaluate.every)

    def _save_due(self) -> bool:
        step, best = self.progress.step, self.progress.best
        if step == self._saved_at:
            return False
        is_best = best is not None and best.step == step
        return self._over() or is_best or self.control.wants_save or self._falls_on(self.spec.checkpoint.every)

    def _falls_on(self, every: Every | str) -> bool:
        length = {"epoch": self.per_epoch, "end": None}[every] if isinstance(every, str) else every
        return length is not None and self.progress.step > 0 and self.progress.step % length == 0

    def _log_due(self) -> bool:
        step = self.progress.step
        return step % self.spec.log.every == 0 or step == 1 or step == self.total

    def _over(self) -> bool:
        return self.progress.step >= self.total or self.control.stopping is not None or self._out_of_patience()

    def _out_of_patience(self) -> bool:
        patience = self.spec.evaluate.patience
        return patience is not None and self.progress.without_better >= patience

    def _epoch(self, update: int) -> int:
        return max(update, 0) // self.per_epoch if self.per_epoch else 0

    def _epoch_begins(self) -> bool:
        return self.progress.step % self.per_epoch == 0 if self.per_epoch else self.progress.step == 0

    def _outcome(self) -> tuple[str, str]:
        """How the run ended; one that was told to end, by patience or a callback, has come to its end."""
        if self.control.signum:
            return "stopped", self.control.stopping or ""
        if self.progress.step >= self.total:
            return "finished", "all updates taken"
        if self._out_of_patience():
            return "finished", f"no better {self.best_metric[0]} in {self.spec.evaluate.patience} evaluations"
        return "finished", self.control.stopping or ""
