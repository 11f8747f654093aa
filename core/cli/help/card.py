"""What is known of a recipe without loading data: tasks, metrics, columns, splits, an example spec."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from taskrecipe.cli.help.examples import example_spec
from taskrecipe.cli.help.fields import Key, list_keys
from taskrecipe.errors import PluginError
from taskrecipe.plugins.registry import Plugin
from taskrecipe.recipe import Column, Direction, Recipe, reported_metrics


@dataclass(frozen=True)
class Facts:
    """What a recipe reads and reports, for one of its tasks."""

    metrics: dict[str, Direction]
    columns: dict[str, Column]
    splits: dict[str, str]


class Card:
    """A recipe, its options, and its facts for each of its tasks."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.recipe: type[Recipe] = plugin.load()

    @cached_property
    def options(self) -> Sequence[Key]:
        """Return the keys of `[task]`."""
        return list_keys(self.recipe.Options)

    @cached_property
    def example(self) -> str:
        """Return an example spec."""
        return example_spec(self.plugin, self.recipe)

    @property
    def tasks(self) -> list[str]:
        """Return the choices of the option `name`; none if the recipe has no such option."""
        named = next((key for key in self.options if key.name == "name"), None)
        return list(named.schema.get("enum", ())) if named else []

    @cached_property
    def facts(self) -> dict[str, Facts]:
        """Return the facts of each task; a recipe without tasks has one entry with an empty name."""
        spec = tomllib.loads(self.example)
        chosen: list[dict[str, Any]] = [{"name": task} for task in self.tasks] or [{}]
        return {one.get("name", ""): self._facts({**spec.get("task", {}), **one}, spec) for one in chosen}

    def metric_names(self) -> list[str]:
        """Return the metrics of all tasks."""
        return list(dict.fromkeys(name for facts in self.facts.values() for name in facts.metrics))

    def _facts(self, task: dict[str, Any], spec: dict[str, Any]) -> Facts:
        from taskrecipe.spec.spec import Spec

        try:
            recipe = self.recipe(Spec.model_validate({**spec, "recipe": self.plugin.full_name, "task": task}))
            # A recipe made of several has no metrics of its own, but each of its splits reports some.
            return Facts(recipe.metrics() or reported_metrics(recipe), recipe.columns(), recipe.splits())
        except Exception as cause:
            raise PluginError(
                f"{self.plugin.describe()} failed to list its metrics and columns: {type(cause).__name__}: {cause}"
            ) from cause
