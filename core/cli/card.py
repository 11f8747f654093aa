"""What a recipe says of itself before anything is loaded: tasks, metrics, columns, splits, an example."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from taskrecipe.core.cli.examples import example
from taskrecipe.core.cli.fields import Key, keys
from taskrecipe.core.errors import PluginError
from taskrecipe.core.recipe import Column, Direction, Recipe
from taskrecipe.core.registry import Plugin


@dataclass(frozen=True)
class Facts:
    """What a recipe reads and reports, for one of its tasks."""

    metrics: dict[str, Direction]
    columns: dict[str, Column]
    splits: dict[str, str]


class Card:
    """A recipe, its options, and its facts for each task it has."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.recipe: type[Recipe] = plugin.load()

    @cached_property
    def options(self) -> list[Key]:
        """The keys of `[task]`."""
        return keys(self.recipe.Options)

    @cached_property
    def example(self) -> str:
        """An example spec."""
        return example(self.plugin, self.recipe)

    @property
    def tasks(self) -> list[str]:
        """The values of the option `name`, where it is a choice of several."""
        named = next((key for key in self.options if key.name == "name"), None)
        return list(named.schema.get("enum", ())) if named else []

    @cached_property
    def facts(self) -> dict[str, Facts]:
        """What is read and reported for each task; for a recipe without tasks under an empty name."""
        spec = tomllib.loads(self.example)
        chosen: list[dict[str, Any]] = [{"name": task} for task in self.tasks] or [{}]
        return {one.get("name", ""): self._facts({**spec.get("task", {}), **one}, spec) for one in chosen}

    def metric_names(self) -> list[str]:
        """Every metric of every task."""
        return list(dict.fromkeys(name for facts in self.facts.values() for name in facts.metrics))

    def _facts(self, task: dict[str, Any], spec: dict[str, Any]) -> Facts:
        from taskrecipe.core.spec.spec import Spec

        try:
            recipe = self.recipe(Spec.model_validate({**spec, "recipe": self.plugin.full_name, "task": task}))
            # A recipe of several parts has no metrics of its own, but each split reports some.
            return Facts(recipe.metrics() or recipe.reported(), recipe.columns(), recipe.splits())
        except Exception as cause:
            raise PluginError(
                f"{self.plugin.describe()} fails to say its metrics and columns: {type(cause).__name__}: {cause}"
            ) from cause
