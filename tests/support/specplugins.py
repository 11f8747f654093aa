"""Plugins that specs of the tests name, and a registry that has nothing else."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from taskrecipe.optional import ComputesUpdate, HasParts
from taskrecipe.plugins.kinds import Callback, Optimizer, Schedule, Technique, Tracker
from taskrecipe.plugins.registry import Group, Plugin, Registry
from taskrecipe.recipe import Recipe
from taskrecipe.spec.spec import RecipeChoice
from taskrecipe.spec.table import Count, HubOrPath, LocalPath, TaskOptions


class Sorting(Recipe):
    """Sort things."""

    smooths_labels = True
    sample_settings = {"train.learning_rate": 0.5, "train.batch_size": 4}  # noqa: RUF012

    class Options(TaskOptions):
        name: Literal["red", "green"] = Field(description="Which color.")
        width: Count = Field(default=3, description="How wide.")
        ratio: float = Field(default=0.5, gt=0.0, lt=1.0, description="How much.")
        words: LocalPath | None = Field(default=None, description="A list of words.")

        @field_validator("width")
        @classmethod
        def _not_unlucky(cls, width: int) -> int:
            if width == 13:
                raise ValueError("13 brings bad luck; take 12 or 14")
            if width == 666:
                raise KeyError("a mistake of the plugin's")
            return width

    def metrics(self):
        return {"hits": "max"} if self.options.name == "red" else {"misses": "min", "hits": "max"}

    def splits(self):
        return {"train": "train", "validation": "validation", "other": "other"}


class Wrapping(Recipe):
    """A recipe around others."""

    class Options(TaskOptions):
        inner: RecipeChoice = Field(description="What is wrapped.")
        more: list[RecipeChoice] = Field(default=[], description="What else is.")
        named: dict[str, RecipeChoice] = Field(default={}, description="And by name.")
        teacher: HubOrPath | None = Field(default=None, description="Who teaches.")


class Plain(Recipe):
    """Nothing to set and nothing to report."""


class Moody(Recipe):
    """Fails when it is asked."""

    def metrics(self):
        raise RuntimeError("not today")


class Careless(Recipe):
    """Its sample settings are wrong."""

    sample_settings = {"train.learning_rat": 1.0}  # noqa: RUF012


class Homemade(Recipe):
    """Builds its own model."""

    uses_model = False


class Several(HasParts, Recipe):
    """Made of others, which name their rows."""

    def parts(self):
        return {}

    def join(self, parts):
        return {}

    def mark_part(self, name, rows):
        return rows


class Pairing(ComputesUpdate, Recipe):
    """Computes whole updates if it is asked to."""

    class Options(TaskOptions):
        whole: bool = Field(default=True, description="Whether to.")

    @property
    def whole_update(self):
        return self.options.whole

    def backward(self, model, update):
        raise NotImplementedError


class Noise(Technique):
    """Adds noise."""

    changes_loss = True
    sample_settings = {"amount": 0.01}  # noqa: RUF012

    amount: float = Field(default=0.5, ge=0.0, le=1.0, description="How much.")
    source: HubOrPath | None = Field(default=None, description="From where.")

    def objections(self, recipe):
        if self.amount == 0.75:
            raise RuntimeError("not today")
        found = {}
        if self.amount == 1.0:
            found["amount"] = "nothing but noise would be left"
        if recipe.spec.train.compile:
            found["train.compile"] = "noise can't be compiled"
        return found


class Freeze(Technique):
    """Trains fewer weights."""

    layers: Count = Field(description="How many are not trained.")


class AdamW(Optimizer):
    """The default."""

    beta1: float = Field(default=0.9, ge=0.0, lt=1.0, description="Memory.")


class SGD(Optimizer):
    """Plain."""

    momentum: float = Field(default=0.0, ge=0.0, lt=1.0, description="Memory.")


class Linear(Schedule):
    """The default."""


class Bell(Callback):
    """Rings."""

    times: Count = Field(default=1, description="How often.")


class Board(Tracker):
    """Shows."""

    project: str | None = Field(default=None, description="Under what name.")


NAMES: dict[Group, dict[str, str]] = {
    "recipes": {
        "sorting": "Sorting",
        "wrapping": "Wrapping",
        "plain": "Plain",
        "moody": "Moody",
        "careless": "Careless",
        "missing": "Nowhere",
        "homemade": "Homemade",
        "several": "Several",
        "pairing": "Pairing",
    },
    "techniques": {"noise": "Noise", "freeze": "Freeze"},
    "optimizers": {"adamw": "AdamW", "sgd": "SGD"},
    "schedules": {"linear": "Linear"},
    "callbacks": {"bell": "Bell"},
    "trackers": {"board": "Board"},
}


def plugin(group: Group, name: str, target: str, distribution: str = "fixtures") -> Plugin:
    return Plugin(group, name, distribution, "1.0", f"tests.support.specplugins:{target}")


def registry(*more: Plugin) -> Registry:
    """What the tests have installed, and `more`."""
    own = [plugin(group, name, target) for group, names in NAMES.items() for name, target in names.items()]
    return Registry([*own, *more])
