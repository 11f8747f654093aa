"""Text recipes on a few rows of their samples with their tiny models, in this process."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from datasets import Dataset

from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe, Splits
from taskrecipe.spec.spec import Spec
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_loop
from tests.support.loops import learn_and_check

_FOLDER = tempfile.TemporaryDirectory(prefix="textruns-")
"""Where tiny models are; removed at the end."""

NO_DROPOUT = {
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "bart": {"dropout": 0.0},
}


def text_spec(recipe: str, task: Mapping[str, Any] | None = None, **tables: Mapping[str, Any]) -> Spec:
    """A short run, with what suits the sample; `task` and `tables` are merged in."""
    values: dict[str, Any] = {
        "spec_version": 1,
        "recipe": recipe,
        "seed": 7,
        "task": {},
        "model": {"name": "none"},
        "data": {"sample": True},
        "train": {},
        "log": {"every": 1},
    }
    for key, value in installed().recipe(recipe).sample_settings.items():
        table, name = key.split(".")
        values.setdefault(table, {})[name] = value
    for name, table in {"task": task or {}, **tables}.items():
        values[name] = {**values.get(name, {}), **table}
    return Spec.model_validate(values)


@dataclass
class Ready:
    """A recipe that has its processor, its preprocessed rows, and where its model comes from."""

    recipe: Recipe
    rows: Splits
    source: ModelSource

    def loop(self, spec: Spec | None = None, dtype: torch.dtype = torch.float64, dropout: bool = False) -> Loop:
        """A loop with a model that is the same every time; `spec` may differ in what preprocessing doesn't see."""
        recipe = copy.copy(self.recipe)
        recipe.spec = spec or recipe.spec
        source = self.source
        if not dropout:
            source = replace(source, config_values=NO_DROPOUT[source.config().model_type])
        torch.manual_seed(0)
        module = recipe.load_model(source).to(dtype)
        accelerator = Accelerator(cpu=True)
        return make_loop(recipe, module, self.rows, accelerator)


def ready(spec: Spec, splits: Splits | None = None, rows: int | None = None) -> Ready:
    """The recipe of `spec` with its tiny model, on `splits` or on (the first `rows` of) its sample."""
    recipe = installed().recipe(spec.recipe)(spec)
    sample, source = _sample(spec.recipe, spec.task.model_dump_json(), spec.seed)
    splits = splits or {
        name: found.select(range(min(len(found), rows or len(found)))) for name, found in sample.items()
    }
    learn_and_check(recipe, splits)
    recipe.processor = recipe.load_processor(source)
    return Ready(recipe, {split: recipe.preprocess(found, split) for split, found in splits.items()}, source)


@cache
def _sample(name: str, task: str, seed: int) -> tuple[Splits, ModelSource]:
    spec = text_spec(name, json.loads(task)).model_copy(update={"seed": seed})
    folder = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    return installed().recipe(name)(spec).sample(folder), ModelSource(str(folder))


def same_splits(rows: Dataset | list[dict[str, Any]]) -> Splits:
    """Rows to train on and to measure on, the same."""
    found = Dataset.from_list(rows) if isinstance(rows, list) else rows
    return {"train": found, "validation": found}
