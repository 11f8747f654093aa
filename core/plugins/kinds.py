"""The kinds of plugins besides recipes: optimizers, schedules, callbacks, trackers, techniques.

Each is a `Table`: its keys are validated like the rest of the spec and shown by `recipe show`. Its `build` method
makes the object that works in the run. Import heavy packages inside that method.

Annotations are no strings in this module (no `from __future__ import annotations`): pydantic would evaluate each of
them for every subclass, and commands would start slower.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from taskrecipe.spec.table import LARGEST, Share, Table, Text

if TYPE_CHECKING:
    import torch

    from taskrecipe.model import ModelSource
    from taskrecipe.recipe import Batch, Recipe
    from taskrecipe.training.control import Control
    from taskrecipe.training.events import Event

Group = dict[str, Any]
"""One of an optimizer's parameter groups: `params`, `param_names`, `weight_decay`, and optionally `lr_scale`."""


class Optimizer(Table):
    """`[optimizer]`: how gradients change the weights."""

    name: Text = Field(default="adamw", description="A registered optimizer; `recipe plugins` lists them.")
    weight_decay: float = Field(
        default=0.0, ge=0.0, le=10.0, description="Weight decay for each update; biases and norms have none."
    )

    splits_linear: ClassVar[bool] = False
    """Whether `build` needs the matrices of linear layers in groups of their own, marked `linear`."""

    shapes_state: ClassVar[tuple[str, ...]] = ()
    """Keys that decide what the optimizer's state holds. They can't change when a run is resumed."""

    needs_whole_weights: ClassVar[bool] = False
    """Whether a step reads whole matrices or keeps state of another shape: then weights can't be sharded."""

    @property
    def has_own_schedule(self) -> bool:
        """Whether the optimizer changes its learning rate itself, so that only the schedule `constant` fits."""
        return False

    def require(self) -> None:
        """Raise `UsageError` if a package that `build` needs is not installed. Called before anything is loaded."""

    def build(self, groups: list[Group], learning_rate: float) -> "torch.optim.Optimizer":
        """Make the optimizer for `groups`.

        Its `state_dict` may hold tensors, numbers, strings, lists and dictionaries of them, and objects of classes
        registered with `taskrecipe.keepable`.
        """
        raise NotImplementedError


class MetricLrFactor:
    """A learning rate factor that follows an evaluated metric, not the update number alone. Checkpoints keep it."""

    def __call__(self, update: int) -> float:
        """Return what the learning rate is multiplied by at `update`."""
        raise NotImplementedError

    def observe(self, value: float) -> None:
        """Take note of an evaluation. Lower is always better: a metric that should rise is passed negated."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must keep, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


class Schedule(Table):
    """`[schedule]`: the learning rate as a function of the update number."""

    name: Text = Field(default="linear", description="A registered schedule; `recipe plugins` lists them.")
    warmup: Annotated[int, Field(ge=0, le=LARGEST)] | Share = Field(
        default=0, description="A share of all updates, or an integer number of updates."
    )

    def build(self, updates: int, warmup: int) -> Callable[[int], float] | MetricLrFactor:
        """Return what the learning rate is multiplied by at each update, counted from 0."""
        raise NotImplementedError


class Callback(Table):
    """One `[[callbacks]]` entry: it sees every event of the run, and can ask it to stop, evaluate or save."""

    name: Text = Field(description="A registered callback; `recipe plugins` lists them.")

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics it needs. A spec whose recipe doesn't report one of them is refused."""
        return ()

    def build(self) -> "Listener":
        """Make the listener for this run."""
        raise NotImplementedError


class Listener:
    """Receives the events of a run. Override `on_event`; override `state` and `restore` to survive a resume."""

    def on_event(self, event: "Event", control: "Control") -> None:
        """Handle `event`. Ask the loop for something with `control.stop()`, `.evaluate()` or `.save()`."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must keep, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""

    def close(self) -> None:
        """Release resources. Called once, however the run ended."""


class Tracker(Table):
    """`[track]`: a service that also shows the numbers of a run."""

    name: Text = Field(description="A registered tracker; `recipe plugins` lists them.")

    def require(self) -> None:
        """Raise `UsageError` if a package that `build` needs is not installed. Called before anything is loaded."""

    def build(self, run_name: str, folder: str) -> Any:
        """Make an `accelerate.tracking.GeneralTracker`, not yet started. It may keep files in `folder`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Computed:
    """A forward pass on a micro-batch: the model's outputs, and each loss term as a mean over its counted items."""

    outputs: Any
    terms: dict[str, "torch.Tensor"]


Compute = Callable[["torch.nn.Module", "Batch"], Computed]
"""Runs the model on a micro-batch and computes its loss terms."""


class Technique(Table):
    """One `[[techniques]]` entry: a change to how any recipe is trained."""

    name: Text = Field(description="A registered technique; `recipe plugins` lists them.")

    changes_loss: ClassVar[bool] = False
    """Whether it changes the loss of a micro-batch. Recipes that compute a whole update at once can't use it then."""

    shapes_state: ClassVar[tuple[str, ...]] = ()
    """Keys that decide which tensors a checkpoint holds. They can't change when a run is resumed."""

    needs_pretrained: ClassVar[bool] = False
    """Whether the model must start from pretrained weights. The sample's tiny model then gets some too."""

    trains_quantized: ClassVar[bool] = False
    """Whether it trains a model whose own weights are quantized by `[model].quantize`."""

    sample_settings: ClassVar[Mapping[str, Any]] = {}
    """Values of its own keys that suit the sample's tiny model."""

    def objections(self, recipe: "Recipe") -> dict[str, str]:
        """Return what in the spec it can't work with: a dotted key, and why. Own keys have no dots.

        For example {"train.compile": "…"} or {"teacher": "…"}. The spec is refused at that line.
        """
        return {}

    def require(self) -> None:
        """Raise `UsageError` if a package it needs is not installed. Called before anything is loaded."""

    def models(self) -> "list[ModelSource]":
        """Return the models it reads besides the spec's `[model]`. They are fetched together with it."""
        return []

    def prepare_sample(self, recipe: "Recipe", rows: Any, folder: Path) -> None:
        """Write into `folder` what it needs when the run uses sample data, such as a trained teacher.

        `recipe` has its processor and labels; `rows` are its preprocessed training rows; `folder` holds its model.
        """

    def build(self, recipe: "Recipe", source: "ModelSource") -> "Effect":
        """Make the object that changes this run. The recipe's processor and labels are known by now."""
        raise NotImplementedError

    def load_exported(self, module: "torch.nn.Module", folder: Path) -> "torch.nn.Module":
        """Fill the model that training started from with what `Effect.export` wrote into `folder`."""
        return module

    def merge(self, module: "torch.nn.Module") -> "torch.nn.Module":
        """Turn what `load_exported` returned into a model of the usual layout that computes the same."""
        return module


class Effect:
    """What a technique does in one run. Override what it changes; by default nothing changes."""

    uses_all_weights: bool = True
    """Whether each trained weight still gets a gradient in every update."""

    def change_model(self, module: "torch.nn.Module") -> "torch.nn.Module":
        """Change the model after the recipe has loaded it, or put another in its place."""
        return module

    def change_groups(self, module: "torch.nn.Module", groups: list[Group]) -> list[Group]:
        """Change the optimizer's parameter groups. `lr_scale` in a group multiplies its learning rate."""
        return groups

    def loss_counts(self, counts: dict[str, float]) -> dict[str, float]:
        """Change how many items each loss term of a micro-batch is a mean over. Add counts for new terms."""
        return counts

    def loss(self, compute: Compute, model: "torch.nn.Module", batch: "Batch") -> Computed:
        """Compute the loss of a training micro-batch. `compute` is what would run without this technique."""
        return compute(model, batch)

    def before_update(self, number: int, module: "torch.nn.Module") -> None:
        """Called before update `number`, counted from 0, on every process."""

    def saved_names(self, module: "torch.nn.Module") -> set[str] | None:
        """Return the names in the model's `state_dict` that checkpoints must hold; None for all of them."""
        return None

    def export(self, module: "torch.nn.Module", folder: Path) -> bool:
        """Write the exported model into `folder` and return True; False to export it the usual way."""
        return False

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must keep, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
