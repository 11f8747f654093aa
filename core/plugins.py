"""What can be plugged in beside recipes: optimizers, schedules, callbacks, trackers.

Each is a `Table`, so its keys are validated like the rest of the spec and shown by `recipe show`,
with one method that makes the working thing. Heavy imports belong inside that method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from taskrecipe.core.spec.table import LARGEST, Share, Table, Text

if TYPE_CHECKING:
    import torch

    from taskrecipe.core.training.control import Control
    from taskrecipe.core.training.events import Event


class Optimizer(Table):
    """`[optimizer]`: how gradients move weights."""

    name: Text = Field(default="adamw", description="A registered optimizer; `recipe plugins` lists them.")
    weight_decay: float = Field(
        default=0.0, ge=0.0, le=10.0, description="Decay of weights a step; biases and norms are spared."
    )

    splits_linear: ClassVar[bool] = False
    """Whether `build` wants the matrices of linear layers in groups of their own, marked `linear`."""

    @property
    def has_own_schedule(self) -> bool:
        """Whether it changes its rate over time by itself, so that only the schedule `constant` makes sense."""
        return False

    def require(self) -> None:
        """Raise `UsageError` if a package that `build` needs is not installed; asked before anything is loaded."""

    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        """Make the optimizer of `groups`, which carry `params`, `param_names` and `weight_decay`.

        Its `state_dict` may hold tensors, numbers, texts, lists and dictionaries of them, and objects of classes
        registered with `taskrecipe.core.checkpoints.state.keepable`.
        """
        raise NotImplementedError


class MetricRate:
    """A rate that follows an evaluated number instead of the update number alone; its state is kept in checkpoints."""

    def __call__(self, update: int) -> float:
        """What the learning rate is multiplied by at `update`."""
        raise NotImplementedError

    def observe(self, value: float) -> None:
        """Take note of an evaluation; lower is better, whatever the metric's own direction."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must keep, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""


class Schedule(Table):
    """`[schedule]`: the learning rate as a function of the update number."""

    name: Text = Field(default="linear", description="A registered schedule; `recipe plugins` lists them.")
    warmup: Annotated[int, Field(ge=0, le=LARGEST)] | Share = Field(
        default=0, description="A share of all updates, or an integer number of updates."
    )

    def build(self, updates: int, warmup: int) -> Callable[[int], float] | MetricRate:
        """Return what the learning rate is multiplied by at each update, counted from 0."""
        raise NotImplementedError


class Callback(Table):
    """One `[[callbacks]]` entry: hears every event of the run, and may ask it to stop, evaluate or save."""

    name: Text = Field(description="A registered callback; `recipe plugins` lists them.")

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics it listens for; one that the recipe doesn't report is refused before anything is loaded."""
        return ()

    def build(self) -> Listener:
        """Make the listener that hears this run."""
        raise NotImplementedError


class Listener:
    """What a callback builds. Override `hear`; override the other two if it must survive a resume."""

    def hear(self, event: Event, control: Control) -> None:
        """Take note of `event`; ask for something by `control.stop()`, `.evaluate()` or `.save()`."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must keep, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""

    def close(self) -> None:
        """Let go of what is held; called once, however the run ended."""


class Tracker(Table):
    """`[track]`: where the numbers of a run are shown besides its own folder."""

    name: Text = Field(description="A registered tracker; `recipe plugins` lists them.")

    def require(self) -> None:
        """Raise `UsageError` if a package that `build` needs is not installed; asked before anything is loaded."""

    def build(self, run_name: str, folder: str) -> Any:
        """Make an `accelerate.tracking.GeneralTracker`, not yet started; `folder` is where it may keep files."""
        raise NotImplementedError
