"""Building the loop: accelerator, optimizer, schedule, updates and evaluations, from spec, recipe and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch.nn.parallel import DistributedDataParallel

from taskrecipe.errors import UsageError
from taskrecipe.optional import DrawsRows
from taskrecipe.plugins.kinds import Effect, Listener
from taskrecipe.plugins.optimizers import parameter_groups
from taskrecipe.plugins.schedules import length_in_updates
from taskrecipe.recipe import Recipe, Splits, best_metric, evaluated_splits
from taskrecipe.spec.spec import Spec
from taskrecipe.system.optional_packages import require_package
from taskrecipe.training.dropout import RowDropout
from taskrecipe.training.dropout_scan import warn_of_other_draws
from taskrecipe.training.ema import Ema
from taskrecipe.training.evaluation import Evaluation
from taskrecipe.training.gradients import Gradients
from taskrecipe.training.loop import Loop
from taskrecipe.training.micro_batches import Cut
from taskrecipe.training.objective import Objective
from taskrecipe.training.order import Order
from taskrecipe.training.sharding import is_engine, is_sharded, wants_engine
from taskrecipe.training.state import TrainState
from taskrecipe.training.unused_weights import ExchangeWatch, holds_changing_buffers, leaves_weights_unused
from taskrecipe.training.update import Updates

if TYPE_CHECKING:
    from taskrecipe.checkpoints.store import Checkpoints, PartWriter
    from taskrecipe.training.streaming import StreamedUpdates


def make_accelerator(spec: Spec) -> Accelerator:
    """Set up Accelerate as the spec says. A precision that the hardware doesn't have is refused here."""
    if spec.launch.engine == "deepspeed":
        require_package("deepspeed", install="taskrecipe[deepspeed]", wanted_by='[launch].engine = "deepspeed"')
    precision = spec.train.precision
    on_cpu = spec.launch.device == "cpu" or not torch.accelerator.is_available()
    if on_cpu and precision in ("fp16", "fp8"):
        raise UsageError(
            f"[train].precision = {precision!r} needs an accelerator, and there is none here; use 'bf16' or 'no'"
        )
    if precision == "fp8" and not _has_fp8():
        raise UsageError("[train].precision = 'fp8' needs a GPU of compute capability 8.9 or higher; use 'bf16'")
    accelerator = Accelerator(mixed_precision=precision, cpu=on_cpu)
    _require_even_batches(spec, accelerator.num_processes)
    return accelerator


def make_loop(
    recipe: Recipe,
    module: torch.nn.Module,
    rows: Splits,
    accelerator: Accelerator,
    *,
    effects: Sequence[Effect] = (),
    listeners: Sequence[Listener] = (),
    store: Checkpoints | PartWriter | None = None,
) -> Loop:
    """Build a loop that is ready to start, or to be restored from a checkpoint."""
    spec, dropout = recipe.spec, _make_dropout(recipe.spec, module, accelerator)
    objective = Objective(recipe, effects, dropout)
    if spec.train.gradient_checkpointing:
        _enable_gradient_checkpointing(module, dropout)
    model, optimizer = _prepare_training(objective, module, accelerator)
    updates = _make_updates(objective, rows["train"], accelerator, model)
    state = _state_class(model)(
        module=module,
        optimizer=optimizer,
        lr_factor=spec.schedule.build(updates.total, warmup_updates(spec, updates.total)),
        updates=updates,
        scaler=accelerator.scaler,
        ema=Ema(module, spec.train.ema) if spec.train.ema else None,
        listeners=listeners,
        effects=effects,
    )
    return Loop(
        spec=spec,
        objective=objective,
        accelerator=accelerator,
        model=model,
        state=state,
        gradients=_make_gradients(module, model, accelerator),
        total=updates.total,
        per_epoch=updates.order.updates_per_epoch if isinstance(updates, Updates) else None,
        evaluations=make_evaluations(recipe, rows, accelerator, evaluated_splits(recipe)),
        best_metric=best_metric(recipe),
        store=store,
    )


def warmup_updates(spec: Spec, total: int) -> int:
    """Return the warmup as a number of updates."""
    count = length_in_updates(spec.schedule.warmup, total)
    if count > total:
        raise UsageError(f"[schedule].warmup is {count} updates, but the whole run has {total}")
    return count


def _require_even_batches(spec: Spec, processes: int) -> None:
    if spec.train.batch_size % (spec.train.first_accumulate * processes):
        raise UsageError(
            f"[train].batch_size = {spec.train.batch_size} can't be split over {processes} processes with "
            f"accumulate = {spec.train.accumulate}: it must be a multiple of {spec.train.first_accumulate * processes}"
        )


def _make_dropout(spec: Spec, module: torch.nn.Module, accelerator: Accelerator) -> RowDropout | None:
    """Return what makes dropout follow the rows, and warn of what in the model can't; None where torch draws."""
    if spec.train.dropout == "torch":
        return None
    warn_of_other_draws(module)
    # Several processes must make the same passes, and one that is made twice must change no statistics. A compiled
    # model has no calls that a mode could slow down.
    may_rest = accelerator.num_processes == 1 and not spec.train.compile and not holds_changing_buffers(module)
    return RowDropout(spec.seed, accelerator.device, may_rest)


def _enable_gradient_checkpointing(module: torch.nn.Module, dropout: RowDropout | None) -> None:
    enable: Any = getattr(module, "gradient_checkpointing_enable", None)
    if enable is None:
        raise UsageError("[train].gradient_checkpointing = true, but this model doesn't support it")
    replay = {"context_fn": dropout.checkpoint_contexts} if dropout else {}
    enable(gradient_checkpointing_kwargs={"use_reentrant": False, **replay})


def _prepare_training(
    objective: Objective, module: torch.nn.Module, accelerator: Accelerator
) -> tuple[torch.nn.Module, Any]:
    """Return the model as processes train it together, and its optimizer."""
    spec, effects = objective.recipe.spec, objective.effects
    if not wants_engine(spec, accelerator):
        return _prepare_model(objective, module, accelerator), _make_optimizer(spec, module, accelerator, effects)
    from taskrecipe.zero.engine import make_engine

    if leaves_weights_unused(objective.recipe, effects):
        raise UsageError("DeepSpeed changes weights without a gradient too, and a technique of this spec leaves some")
    prepared = accelerator.prepare_model(module, device_placement=False, evaluation_mode=True)  # for the precision
    return make_engine(prepared, build_optimizer(spec, module, effects), spec, accelerator)


def _state_class(model: torch.nn.Module) -> type[TrainState]:
    if not is_engine(model):
        return TrainState
    from taskrecipe.zero.state import DividedState

    return DividedState


def _prepare_model(objective: Objective, module: torch.nn.Module, accelerator: Accelerator) -> torch.nn.Module:
    """Put the module on its device, in the spec's precision, and let processes train it together."""
    recipe = objective.recipe
    if is_sharded(module):
        # Of Accelerate only the precision is wanted: the wrapper of replicated models is for training.
        model = accelerator.prepare_model(module, device_placement=False, evaluation_mode=True)
    else:
        module.to(accelerator.device)
        accelerator.ddp_handler = DistributedDataParallelKwargs(
            find_unused_parameters=leaves_weights_unused(recipe, objective.effects)
        )
        model = accelerator.prepare_model(torch.compile(module) if recipe.spec.train.compile else module)
        if isinstance(model, DistributedDataParallel):  # else every forward pass would wait for an exchange of buffers
            model.broadcast_buffers = holds_changing_buffers(module)
    prepared: torch.nn.Module = model
    return prepared


def _make_gradients(module: torch.nn.Module, model: torch.nn.Module, accelerator: Accelerator) -> Gradients:
    if is_engine(model):
        from taskrecipe.zero.gradients import DividedGradients

        return DividedGradients(module, accelerator, model)
    if not is_sharded(module):
        return Gradients(module, accelerator)
    from taskrecipe.sharding.gradients import ShardedGradients

    return ShardedGradients(module, accelerator)


def build_optimizer(spec: Spec, module: torch.nn.Module, effects: Sequence[Effect]) -> torch.optim.Optimizer:
    """Build the optimizer of `[optimizer]` for the trained parameters of a module."""
    groups = parameter_groups(module, spec.optimizer)
    for effect in effects:
        groups = effect.change_groups(module, groups)
    scales = {id(parameter): group.pop("lr_scale", 1.0) for group in groups for parameter in group["params"]}
    optimizer = spec.optimizer.build(groups, spec.train.learning_rate)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"] * scales.get(id(group["params"][0]), 1.0)
    return optimizer


def _make_optimizer(
    spec: Spec, module: torch.nn.Module, accelerator: Accelerator, effects: Sequence[Effect]
) -> torch.optim.Optimizer | Any:
    optimizer = build_optimizer(spec, module, effects)
    # Accelerate's wrapper scales the loss. Where there is nothing to scale it would only cost time at every step.
    return accelerator.prepare_optimizer(optimizer) if accelerator.scaler else optimizer


def _make_updates(
    objective: Objective, rows: Any, accelerator: Accelerator, model: torch.nn.Module
) -> Updates | StreamedUpdates:
    spec = objective.recipe.spec
    cut = Cut(spec.train.accumulate, spec.train.batch_size // accelerator.num_processes)
    if not cut.is_fixed:
        # Its wrapper would exchange gradients within the backward pass, where another process may run out of memory.
        model = model.module if isinstance(model, DistributedDataParallel) else model
        if is_sharded(model):
            from taskrecipe.sharding.agreement import Agreement

            cut.agreement = Agreement(model)
    watch = None
    if isinstance(model, DistributedDataParallel) and not model.find_unused_parameters:
        watch = ExchangeWatch(model)
    if spec.data.streaming:
        from taskrecipe.training.streaming import StreamedUpdates

        return StreamedUpdates(objective, rows, accelerator, model, spec.train.updates or 0, cut, watch)
    order = make_order(objective.recipe, rows)
    total = count_updates(spec, order.updates_per_epoch)
    return Updates(objective, rows, order, accelerator, model, total, cut, watch)


def make_order(recipe: Recipe, rows: Any) -> Order:
    """Return the order in which stored rows are trained on."""
    spec, kind = recipe.spec, recipe.spec.train.order
    lengths = recipe.lengths(rows) if kind == "bucketed" else None
    if kind == "bucketed" and lengths is None:
        raise UsageError(
            f"[train].order = 'bucketed' needs lengths, and rows of recipe {spec.recipe!r} have none; use 'shuffled'"
        )
    draw = (lambda random: recipe.draw(rows, random)) if isinstance(recipe, DrawsRows) else None
    return Order(
        size=len(rows), batch_size=spec.train.batch_size, seed=spec.seed, kind=kind, lengths=lengths, draw=draw
    )


def count_updates(spec: Spec, per_epoch: int) -> int:
    """Return the number of updates of the run: its epochs or its updates, whichever end first."""
    limits = [spec.train.updates, spec.train.epochs * per_epoch if spec.train.epochs else None]
    return min(limit for limit in limits if limit is not None)


def evaluation_batch_size(spec: Spec) -> int:
    """Return the rows of a batch of an evaluation."""
    # Not divided by the number of processes: the same batches everywhere give the same bits everywhere.
    return spec.evaluate.batch_size or max(1, spec.train.batch_size // spec.train.first_accumulate)


def make_evaluations(recipe: Recipe, rows: Splits, accelerator: Accelerator, splits: Sequence[str]) -> list[Evaluation]:
    """Make the evaluations of some splits, in the batches that the spec says."""
    spec = recipe.spec
    size = evaluation_batch_size(spec)
    return [
        Evaluation(
            recipe,
            split,
            rows[split],
            size,
            spec.data.workers,
            accelerator,
            keeps_losses=spec.evaluate.predictions > 0,
        )
        for split in splits
    ]


def _has_fp8() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
