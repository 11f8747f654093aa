"""The checks of training: exact accumulation, resume and repetition, and that something is learned."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from taskrecipe.checkpoints.nested_state import pack_state
from taskrecipe.checkpoints.store import Checkpoints
from taskrecipe.testing.requirements import require
from taskrecipe.testing.subject import FEW, Subject, evaluate_once, use_double_batches
from taskrecipe.text.packs import MEMBERS
from taskrecipe.training.batches import MicroBatch
from taskrecipe.training.events import Evaluated
from taskrecipe.training.loop import Loop
from taskrecipe.training.state import OptimizerGroups
from taskrecipe.training.unused_weights import leaves_weights_unused
from taskrecipe.training.update import Update


def batches_hold_their_rows(subject: Subject) -> None:
    """Every tensor of a batch has one entry a row, or packs hold every row; batches count the same loss terms."""
    loop = subject.loop(subject.few, train__batch_size=4, train__accumulate=1)
    terms = set()
    for update in islice(loop.state.updates(0), 4):
        batch = update.batches[0]
        _require_entries(batch)
        counts = batch.counts.values()
        require(all(math.isfinite(n) and n >= 0 for n in counts), f"loss_counts must be counts, not {batch.counts}")
        terms.add(frozenset(batch.counts))
    require(len(terms) == 1, f"the loss terms differ from batch to batch: {[sorted(t) for t in terms]}")


def accumulation_is_exact(subject: Subject) -> None:
    """An update in several micro-batches has the gradients of one that is not split; a short one too."""
    for number in (0, FEW // 4):
        whole = _gradients(subject, 1, number)
        for parts in (2, 4):
            split = _gradients(subject, parts, number)
            for name, gradient in whole.items():
                difference = float((gradient - split[name]).abs().max())
                require(
                    difference <= 1e-11 * max(1.0, float(gradient.abs().max())),
                    f"the gradient of {name} differs by {difference:g} when the update is split; see `loss_counts`, "
                    "and `narrow_rows` if the model runs on some of a batch's rows only",
                )


def weights_are_used_as_said(subject: Subject) -> None:
    """Every update gives each trained weight a gradient, unless the recipe or a technique says otherwise."""
    loop = subject.loop(subject.few, torch.float32, train__batch_size=4, train__order="sequential")
    if leaves_weights_unused(loop.objective.recipe, loop.objective.effects):
        return
    loop.model.train()
    update = next(loop.state.updates(0))
    for effect in loop.objective.effects:
        effect.before_update(update.number, loop.state.module)
    update.compute_gradients()
    weights = loop.state.module.named_parameters()
    unused = [name for name, weight in weights if weight.requires_grad and weight.grad is None]
    require(not unused, f"{', '.join(unused[:4])} got no gradient: set `uses_all_weights = False`, or don't train them")


def training_is_deterministic(subject: Subject) -> None:
    """The same spec gives the same bits."""
    first, second = (_bits(_train(subject, 4)) for _ in range(2))
    _require_same(first, second, "two runs of the same spec differ in {}: draw randomness from `random` alone")


def resume_is_exact(subject: Subject) -> None:
    """A run that stops and is resumed from its checkpoint ends in the bits of one that doesn't stop."""
    whole = _bits(_train(subject, 4))
    stopped = _train(subject, 2)
    store = Checkpoints(subject.folder / "checkpoints", keep=1, run_id="conformance")
    checkpoint = store.commit(stopped.progress.step, stopped.state.contents(), best=None)
    resumed = subject.loop(subject.few, train__batch_size=4, train__epochs=4)
    resumed.state.restore(checkpoint)
    _take(resumed, islice(resumed.state.updates(2), 2))
    _require_same(whole, _bits(resumed), "a resumed run differs in {}: it keeps state that is not saved")


def one_batch_is_overfitted(subject: Subject) -> None:
    """A model that can't learn a few rows by heart learns nothing."""
    loop = subject.loop(subject.few, dropout=False, train__batch_size=4, train__updates=200, schedule__name="constant")
    first = next(loop.state.updates(0))
    losses = _take(loop, (_renew(first) for _ in range(100)))
    require(
        losses[-1] < losses[0] - 0.3 * abs(losses[0]),
        f"100 updates on {len(first.rows)} rows brought the loss only from {losses[0]:.4f} to {losses[-1]:.4f}",
    )


def sample_is_learnable(subject: Subject) -> None:
    """A run on the sample improves the metric that decides, in its declared direction."""
    schedule = {k: v for k, v in subject.recipe_class.sample_settings.items() if k.startswith("schedule.")}
    loop = subject.loop(subject.prepared[1], **schedule)
    name, direction = loop.best_metric
    before = evaluate_once(loop)[name]
    after = []
    for event in loop.run():
        if isinstance(event, Evaluated):
            after.append(event.metrics[name])
            if after[-1] > before if direction == "max" else after[-1] < before:
                return
    raise AssertionError(
        f"{name} was {before:.4f} untrained and never better than that: {after}; {direction} is better"
    )


def _require_entries(batch: MicroBatch) -> None:
    rows = len(batch.rows)
    if MEMBERS in batch.inputs:
        packed = set(batch.inputs[MEMBERS].unique().tolist()) - {-1}
        require(packed == set(range(rows)), f"the packs of {rows} rows hold the rows {sorted(packed)}")
        return
    for key, value in batch.inputs.items():
        if isinstance(value, (torch.Tensor, list)) and not (isinstance(value, torch.Tensor) and value.ndim == 0):
            require(len(value) == rows, f"{key!r} has {len(value)} entries for {rows} rows")


def _train(subject: Subject, updates: int) -> Loop:
    loop = subject.loop(subject.few, train__batch_size=4, train__epochs=4)
    _take(loop, islice(loop.state.updates(0), updates))
    return loop


def _take(loop: Loop, updates: Iterable[Update]) -> list[float]:
    loop.model.train()
    return [loop.take(update).loss or 0.0 for update in updates]


def _renew(update: Update) -> Update:
    fresh = copy.copy(update)
    fresh.terms = {}
    return fresh


def _bits(loop: Loop) -> dict[str, torch.Tensor]:
    optimizer = pack_state(OptimizerGroups(loop.state.optimizer, loop.state.module).state())[0]
    return {**loop.state.module.state_dict(), **{f"optimizer.{name}": value for name, value in optimizer.items()}}


def _require_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], message: str) -> None:
    for name, value in first.items():
        require(torch.equal(value, second[name]), message.format(name))


def _gradients(subject: Subject, accumulate: int, number: int) -> dict[str, torch.Tensor]:
    settings: dict[str, Any] = {
        "train__batch_size": 4,
        "train__accumulate": accumulate,
        "train__order": "sequential",
    }
    loop = subject.loop(subject.few, torch.float64, **settings)
    use_double_batches(loop)
    loop.model.train()
    next(loop.state.updates(number)).compute_gradients()
    return {name: p.grad.clone() for name, p in loop.state.module.named_parameters() if p.grad is not None}
