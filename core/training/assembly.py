"""Putting a run together: model, optimizer, schedule, updates and evaluations, from spec, recipe and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs

from taskrecipe.core.errors import UsageError
from taskrecipe.core.optimizers import parameter_groups
from taskrecipe.core.recipe import Direction, Recipe, Splits, evaluated_splits, reported_metrics
from taskrecipe.core.schedules import updates_in
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.training.averages import MovingAverage
from taskrecipe.core.training.evaluation import Evaluation
from taskrecipe.core.training.loop import Loop
from taskrecipe.core.training.order import Order
from taskrecipe.core.training.update import Updates

if TYPE_CHECKING:
    from taskrecipe.core.training.streaming import StreamedUpdates


def make_accelerator(spec: Spec) -> Accelerator:
    """Accelerate, set up as the spec says; a precision the hardware can't do is refused here."""
    precision = spec.train.precision
    on_cpu = spec.launch.device == "cpu" or not torch.accelerator.is_available()
    if on_cpu and precision in ("fp16", "fp8"):
        raise UsageError(
            f"[train].precision = {precision!r} needs an accelerator, and there is none here; use 'bf16' or 'no'"
        )
    if precision == "fp8" and not _does_fp8():
        raise UsageError("[train].precision = 'fp8' needs a GPU of compute capability 8.9 or more; use 'bf16'")
    # Heads and layers that a batch doesn't use are ordinary (several tasks at once, layer drop).
    parallel = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(mixed_precision=precision, cpu=on_cpu, kwargs_handlers=[parallel])


def assemble(recipe: Recipe, module: torch.nn.Module, rows: Splits, accelerator: Accelerator) -> Loop:
    """A loop that is ready to start, or to be put where a checkpoint was."""
    spec = recipe.spec
    if spec.train.gradient_checkpointing:
        enable_checkpointing: Any = getattr(module, "gradient_checkpointing_enable", None)
        if enable_checkpointing is None:
            raise UsageError("[train].gradient_checkpointing = true, but this model has no way to do that")
        enable_checkpointing(gradient_checkpointing_kwargs={"use_reentrant": False})
    module.to(accelerator.device)
    model = torch.compile(module) if spec.train.compile else module
    model = accelerator.prepare_model(model)
    optimizer = make_optimizer(spec, module, accelerator)
    updates = make_updates(recipe, rows["train"], accelerator, model)
    total = updates.total
    return Loop(
        spec=spec,
        recipe=recipe,
        accelerator=accelerator,
        module=module,
        model=model,
        optimizer=optimizer,
        rate=spec.schedule.build(total, warmup_updates(spec, total)),
        updates=updates,
        total=total,
        per_epoch=updates.order.updates_per_epoch if isinstance(updates, Updates) else None,
        evaluations=make_evaluations(spec, recipe, rows, accelerator),
        best_metric=best_metric(spec, recipe),
        average=MovingAverage(module, spec.train.ema) if spec.train.ema else None,
    )


def make_optimizer(spec: Spec, module: torch.nn.Module, accelerator: Accelerator) -> Any:
    """The spec's optimizer of the module's parameters."""
    optimizer = spec.optimizer.build(parameter_groups(module, spec.optimizer), spec.train.learning_rate)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    # Accelerate's wrapper scales the loss; where there is nothing to scale it would only cost time at every step.
    return accelerator.prepare_optimizer(optimizer) if accelerator.scaler else optimizer


def make_updates(
    recipe: Recipe, rows: Any, accelerator: Accelerator, model: torch.nn.Module
) -> Updates | StreamedUpdates:
    """The updates of the whole run, from stored rows or from a stream."""
    spec = recipe.spec
    if spec.data.streaming:
        from taskrecipe.core.training.streaming import StreamedUpdates

        return StreamedUpdates(recipe, rows, accelerator, model, spec.train.updates or 0)
    order = make_order(spec, recipe, rows)
    return Updates(recipe, rows, order, accelerator, model, count_updates(spec, order.updates_per_epoch))


def make_order(spec: Spec, recipe: Recipe, rows: Any) -> Order:
    """The order of the training rows."""
    kind = spec.train.order
    lengths = recipe.lengths(rows) if kind == "bucketed" else None
    if kind == "bucketed" and lengths is None:
        raise UsageError(
            f"[train].order = 'bucketed' needs lengths, and recipe {spec.recipe!r} has none; use 'shuffled'"
        )
    draws = type(recipe).draw is not Recipe.draw
    return Order(
        size=len(rows),
        batch_size=spec.train.batch_size,
        seed=spec.seed,
        kind=kind,
        lengths=lengths,
        draw=(lambda random: recipe.draw(rows, random)) if draws else None,
    )


def count_updates(spec: Spec, per_epoch: int) -> int:
    """How many updates the run has: its epochs' or its updates, whichever ends first."""
    limits = [spec.train.updates, spec.train.epochs * per_epoch if spec.train.epochs else None]
    return min(limit for limit in limits if limit is not None)


def warmup_updates(spec: Spec, total: int) -> int:
    """The warmup as a number of updates."""
    count = updates_in(spec.schedule.warmup, total)
    if count > total:
        raise UsageError(f"[schedule].warmup is {count} updates, but the whole run has {total}")
    return count


def best_metric(spec: Spec, recipe: Recipe) -> tuple[str, Direction]:
    """The metric that decides the best checkpoint, and which way is better."""
    reported = reported_metrics(recipe)
    name = spec.evaluate.best or next(iter(reported))
    return name, reported[name]


def make_evaluations(spec: Spec, recipe: Recipe, rows: Splits, accelerator: Accelerator) -> list[Evaluation]:
    """One evaluation a split."""
    # Not divided by the number of processes: the same batches everywhere give the same bits everywhere.
    size = spec.evaluate.batch_size or max(1, spec.train.batch_size // spec.train.accumulate)
    return [
        Evaluation(recipe, split, rows[split], size, spec.data.workers, accelerator)
        for split in evaluated_splits(recipe)
    ]


def _does_fp8() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
