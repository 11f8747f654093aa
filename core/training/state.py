"""The state of training: everything that a resumed run needs, what a checkpoint holds of it, and which one is best.

Tensors are kept by parameter name, never by their place in a list. What the spec says (the optimizer's settings, the
schedule) is not state: a resumed run takes it from its spec.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from taskrecipe.checkpoints.nested_state import pack_state, unpack_state
from taskrecipe.checkpoints.safetensors_file import Tensors, tensors_size
from taskrecipe.errors import UsageError
from taskrecipe.plugins.kinds import Effect, Listener, MetricLrFactor
from taskrecipe.recipe import Direction
from taskrecipe.training.ema import Ema
from taskrecipe.training.sharding import is_sharded

if TYPE_CHECKING:
    from taskrecipe.checkpoints.checkpoint import Checkpoint
    from taskrecipe.checkpoints.store import Contents
    from taskrecipe.training.streaming import StreamedUpdates
    from taskrecipe.training.update import Updates

MODEL, OPTIMIZER, EMA, STATE = "model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"

LearningRateFactor = Callable[[int], float] | MetricLrFactor


@dataclass
class Best:
    """The best evaluation so far."""

    metric: str
    value: float
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Every metric of that evaluation."""


@dataclass
class Progress:
    """How far a run is. The position in the data needs no field: it is the number of updates."""

    step: int = 0
    """Updates taken so far."""
    evaluated: int = 0
    """The step of the last evaluation. An evaluation that was interrupted is still due."""
    best: Best | None = None
    without_better: int = 0
    """Evaluations since the best one, which `[evaluate].patience` limits."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of the last evaluation."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent on training, evaluation and saving, over all parts of the run."""

    def record_evaluation(self, metric: str, direction: Direction, metrics: dict[str, float], min_delta: float) -> bool:
        """Record an evaluation at this step. Return whether it is the best so far; NaN is never the best."""
        self.evaluated, self.metrics = self.step, metrics
        value = metrics[metric]
        if math.isfinite(value) and (self.best is None or _gain(value, self.best.value, direction) > min_delta):
            self.best, self.without_better = Best(metric, value, self.step, dict(metrics)), 0
            return True
        self.without_better += 1
        return False

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """Make the progress that `to_json` returned."""
        best = values["best"]
        return cls(**{**values, "best": Best(**best) if best else None})


def _gain(value: float, best: float, direction: Direction) -> float:
    return value - best if direction == "max" else best - value


@dataclass
class TrainState:
    """All that training changes. The loop owns it; checkpoints hold it; a resumed run restores it."""

    module: torch.nn.Module
    optimizer: Any
    """A torch optimizer, or Accelerate's wrapper around one."""
    lr_factor: LearningRateFactor
    updates: Updates | StreamedUpdates
    scaler: Any = None
    ema: Ema | None = None
    progress: Progress = field(default_factory=Progress)
    listeners: Sequence[Listener] = ()
    effects: Sequence[Effect] = ()

    def __post_init__(self) -> None:
        self._groups: Any = OptimizerGroups(self.optimizer, self.module)

    def contents(self) -> Contents:
        """Return what a checkpoint of this moment holds: a file name to its bytes or tensors.

        If the state is sharded, it is what this process writes of it.
        """
        tensors, optimizer = pack_state(self._groups.state())
        state = {
            "progress": self.progress.to_json(),
            "position": self.updates.state(),
            "optimizer": optimizer,
            "schedule": self.lr_factor.state() if isinstance(self.lr_factor, MetricLrFactor) else None,
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "listeners": [listener.state() for listener in self.listeners],
            "techniques": [effect.state() for effect in self.effects],
        }
        files: dict[str, Tensors] = {MODEL: self._weights(), OPTIMIZER: tensors}
        if self.ema is not None:
            files[EMA] = self._average(self.ema)
        about = {STATE: json.dumps(state).encode()}
        if not self.is_sharded:
            return {**files, **about}
        from taskrecipe.sharding.state_files import split_files

        return {**split_files(files), **(about if distributed.get_rank() == 0 else {})}

    def restore(self, checkpoint: Checkpoint, listener_places: Sequence[int | None] | None = None) -> None:
        """Restore everything from a checkpoint. Settings stay as the spec has them.

        `listener_places` says which saved listener each listener continues; None for one that is new.
        """
        self.restore_weights(checkpoint)
        state = checkpoint.json(STATE)
        self.progress = Progress.from_json(state["progress"])
        self.updates.restore(state["position"])
        if isinstance(self.lr_factor, MetricLrFactor) and state["schedule"]:
            self.lr_factor.restore(state["schedule"])
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        places = range(len(self.listeners)) if listener_places is None else listener_places
        for listener, place in zip(self.listeners, places, strict=True):
            if place is not None:
                listener.restore(state["listeners"][place])
        for effect, kept in zip(self.effects, state["techniques"], strict=True):
            effect.restore(kept)

    def restore_weights(self, checkpoint: Checkpoint) -> None:
        """Restore the weights, their average and the optimizer's state; progress and position stay."""
        weights = self._weights()
        if checkpoint.stored_tensors(MODEL).names != weights.keys():
            raise UsageError(f"{checkpoint.path} holds the weights of another model: their names differ")
        if self.is_sharded:
            self._restore_parts(checkpoint, weights)
            return
        # Names that a technique leaves out of checkpoints stay as they were loaded.
        self.module.load_state_dict(checkpoint.tensors(MODEL), strict=False)
        self._groups.restore(_read_optimizer(checkpoint))
        if self.ema is not None:
            self.ema.restore(checkpoint.tensors(EMA))

    def _restore_parts(self, checkpoint: Checkpoint, weights: Tensors) -> None:
        """Restore the parts of tensors that this process holds, and read no others."""
        from taskrecipe.sharding.state_files import load_parts

        load_parts(checkpoint.stored_tensors(MODEL), weights)
        self._restore_optimizer(checkpoint)
        if self.ema is not None:
            load_parts(checkpoint.stored_tensors(EMA), self._average(self.ema))

    def _restore_optimizer(self, checkpoint: Checkpoint) -> None:
        """Restore the parts of the optimizer's state that this process holds."""
        from taskrecipe.sharding.state_files import OptimizerTensors

        stored = OptimizerTensors(checkpoint.stored_tensors(OPTIMIZER), dict(self.module.named_parameters()))
        self._groups.restore(unpack_state(stored, checkpoint.json(STATE)["optimizer"]))

    def _weights(self) -> Tensors:
        """Return the weights that a checkpoint holds, in the memory that training changes."""
        return saved_weights(self.module, self.effects)

    def _average(self, ema: Ema) -> Tensors:
        """Return the average of the weights as a checkpoint holds it."""
        return ema.average

    @property
    def is_sharded(self) -> bool:
        """Whether this process holds only a part of the state."""
        return is_sharded(self.module)

    def estimated_bytes(self) -> int:
        """Return about how large a checkpoint will be: the weights, and two numbers for each trained weight."""
        trained = sum(parameter.nbytes for parameter in self.module.parameters() if parameter.requires_grad)
        average = sum(value.nbytes for value in self.ema.average.values()) if self.ema else 0
        saved = saved_weights(self.module, self.effects)
        weights = sum(value.nbytes for value in saved.values()) if self.is_sharded else tensors_size(saved)
        return weights + 2 * trained + average


def saved_weights(module: torch.nn.Module, effects: Sequence[Effect]) -> dict[str, torch.Tensor]:
    """Return the weights that a checkpoint holds: all of them, or those that techniques choose."""
    weights: dict[str, torch.Tensor] = module.state_dict()
    chosen = [names for effect in effects if (names := effect.saved_names(module)) is not None]
    kept = set.intersection(*chosen) if chosen else weights.keys()
    return {name: value for name, value in weights.items() if name in kept}


def restore_optimizer(optimizer: torch.optim.Optimizer, module: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Restore only the optimizer's state from a checkpoint."""
    OptimizerGroups(optimizer, module).restore(_read_optimizer(checkpoint))


def _read_optimizer(checkpoint: Checkpoint) -> Any:
    return unpack_state(checkpoint.tensors(OPTIMIZER), checkpoint.json(STATE)["optimizer"])


class OptimizerGroups:
    """An optimizer's state by parameter name, apart from the settings that the spec gives to its groups.

    A group mixes settings (betas, weight decay) with state that some optimizers keep there (schedule-free counts its
    steps). A setting never changes while the run goes on, so what has changed since the optimizer was built is state.
    """

    def __init__(self, optimizer: Any, module: torch.nn.Module) -> None:
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.settings = [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            for group in self.optimizer.param_groups
        ]

    def state(self) -> dict[str, Any]:
        """Return the state of each parameter by its name, and what has changed in each group, with its names."""
        whole = self.optimizer.state_dict()
        members = self.member_names()
        order = [name for names in members for name in names]
        changed = [
            {key: value for key, value in group.items() if self._is_state(key, value, settings)}
            for group, settings in zip(self.optimizer.param_groups, self.settings, strict=True)
        ]
        return {
            "parameters": {order[index]: kept for index, kept in whole["state"].items()},
            "groups": [list(pair) for pair in zip(members, changed, strict=True)],
            "extra": {key: value for key, value in whole.items() if key not in ("state", "param_groups")},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        fresh, members = self.optimizer.state_dict(), self.member_names()
        order = [name for names in members for name in names]
        kept = {index: state["parameters"][name] for index, name in enumerate(order) if name in state["parameters"]}
        # Any of its names finds a group again: the order of parameters may have changed.
        changed = {name: values for names, values in state["groups"] for name in names}
        groups = [
            {**group, **next((changed[name] for name in names if name in changed), {})}
            for group, names in zip(fresh["param_groups"], members, strict=True)
        ]
        self.optimizer.load_state_dict({**fresh, **state["extra"], "state": kept, "param_groups": groups})

    def member_names(self) -> list[list[str]]:
        """Return the names of the parameters of each group."""
        return [[self.names[id(parameter)] for parameter in group["params"]] for group in self.optimizer.param_groups]

    @staticmethod
    def _is_state(key: str, value: Any, settings: Mapping[str, Any]) -> bool:
        if key in ("params", "param_names", "lr"):  # the learning rate is set before every update
            return False
        old = settings.get(key, _MISSING)
        if isinstance(value, torch.Tensor) or isinstance(old, torch.Tensor):
            return not (isinstance(old, torch.Tensor) and torch.equal(torch.as_tensor(value), old))
        return bool(old is _MISSING or old != value)


_MISSING = object()
