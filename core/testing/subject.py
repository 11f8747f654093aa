"""The recipe under test: a loop over its sample data, the same every time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.data.load import load_data
from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import Registry
from taskrecipe.recipe import (
    Recipe,
    Row,
    Splits,
)
from taskrecipe.run.sample_model import prepare_sample, sample_source
from taskrecipe.spec.spec import Spec
from taskrecipe.training.events import Evaluated
from taskrecipe.training.loop import Loop
from taskrecipe.training.randomness import Purpose, seed_everything
from taskrecipe.training.setup import make_loop
from taskrecipe.training.state import Progress

FEW = 15
"""Training rows of the quick checks: more than one update, and the last one short."""


class Subject:
    """The recipe under test on its sample data, with the techniques under test."""

    def __init__(
        self,
        name: str,
        task: dict[str, Any],
        registry: Registry,
        folder: Path,
        techniques: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.name, self.task, self.registry, self.folder = name, task, registry, folder
        self.techniques = [self._with_sample_settings(table) for table in techniques]

    def spec(self, **settings: Any) -> Spec:
        """Return the sample's spec with further values by dotted key; `__` stands for the dot."""
        values: dict[str, Any] = {
            "spec_version": 1,
            "recipe": self.name,
            "task": self.task,
            "data": {"sample": True},
            "train": {"epochs": 1, "learning_rate": 1e-3},
            "log": {"every": 1},
            "techniques": self.techniques,
        }
        given = {key.replace("__", "."): value for key, value in settings.items()}
        # A warmup that suits the whole sample may be longer than a quick check.
        suited = {k: v for k, v in self.recipe_class.sample_settings.items() if not k.startswith("schedule.")}
        for key, value in {**suited, **given}.items():
            table, _, name = key.partition(".")
            values[table] = {**values.get(table, {}), name: value}
        return Spec.model_validate(values, context={"registry": self.registry})

    @cached_property
    def recipe_class(self) -> type[Recipe]:
        """The class that is registered under the name."""
        return self.registry.recipe(self.name)

    @cached_property
    def raw(self) -> tuple[Recipe, Splits, ModelSource]:
        """The recipe with its processor and learned values, its rows before preprocessing, and its model's source."""
        recipe = self.recipe_class(self.spec())
        loaded = load_data(recipe.spec, recipe, self.folder / "model")
        recipe.processor = recipe.load_processor(loaded.source)
        return recipe, loaded.splits, loaded.source

    @cached_property
    def prepared(self) -> tuple[Recipe, Splits, ModelSource]:
        """The recipe, its preprocessed rows, and its model's source."""
        recipe, splits, source = self.raw
        rows = {split: recipe.preprocess(found, split) for split, found in splits.items()}
        folder = Path(str(source.folder))
        prepare_sample(recipe, rows["train"], folder)
        return recipe, rows, sample_source(folder, recipe.spec)

    @property
    def few(self) -> Splits:
        """A few rows of each split."""
        return {split: rows.select(range(min(FEW, len(rows)))) for split, rows in self.prepared[1].items()}

    def loop(self, rows: Splits, dtype: torch.dtype = torch.float32, dropout: bool = True, **settings: Any) -> Loop:
        """Make a loop whose model is the same every time."""
        recipe, source = copy.copy(self.prepared[0]), self.prepared[2]
        recipe.spec = self.spec(**settings)
        accelerator = Accelerator(cpu=True)
        seed_everything(accelerator.device, Purpose.MODEL, recipe.spec.seed)
        module = recipe.load_model(source).to(dtype)
        effects = [technique.build(recipe, source) for technique in recipe.spec.techniques]
        for effect in effects:
            module = effect.change_model(module)
        if not dropout:
            switch_off_dropout(module)
        return make_loop(recipe, module, rows, accelerator, effects=effects)

    def _with_sample_settings(self, table: dict[str, Any]) -> dict[str, Any]:
        return {**self.registry.technique(table["name"]).sample_settings, **table}


Check = Callable[[Subject], None]


def evaluate_once(loop: Loop) -> dict[str, float]:
    """Evaluate as a run does, return the metrics, and forget that it happened."""
    *_, last = loop.evaluate()
    if not isinstance(last, Evaluated):
        raise AssertionError(f"an evaluation ended with {last}")
    loop.state.progress = Progress()
    return last.metrics


def use_double_batches(loop: Loop) -> None:
    """Give batches the precision of the model."""
    recipe = loop.objective.recipe
    collate = recipe.collate

    def collate_double(rows: list[Row]) -> dict[str, Any]:
        doubled: dict[str, Any] = _to_double(collate(rows))
        return doubled

    recipe.collate = collate_double  # type: ignore[method-assign]


def _to_double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _to_double(item) for key, item in value.items()}
    return [_to_double(item) for item in value] if isinstance(value, list) else value


def switch_off_dropout(module: torch.nn.Module) -> None:
    """Set the dropout rate to 0, wherever models keep it."""
    for part in [*module.modules(), getattr(module, "config", None)]:
        for name, value in list(vars(part).items()) if part is not None else []:
            if isinstance(value, float) and ("drop" in name or (name == "p" and "Dropout" in type(part).__name__)):
                setattr(part, name, 0.0)
