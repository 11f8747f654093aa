"""Text recipes on a few rows of their samples with their tiny models, in this process."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from datasets import Dataset

from taskrecipe.core.model import ModelSource
from taskrecipe.core.recipe import Recipe, Splits
from taskrecipe.core.registry import installed
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.training.assembly import assemble
from taskrecipe.core.training.events import Evaluated, Saved, Updated
from taskrecipe.core.training.loop import Loop

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


def sampled(spec: Spec, folder: Path) -> tuple[Recipe, Splits, ModelSource]:
    """The recipe, its sample, and its tiny model."""
    recipe = installed().recipe(spec.recipe)(spec)
    return recipe, recipe.sample(folder), ModelSource(str(folder))


def prepared(recipe: Recipe, splits: Splits, source: ModelSource) -> Splits:
    """Checked and preprocessed rows; the recipe is then ready to train."""
    recipe.check(splits)
    recipe.processor = recipe.load_processor(source)
    return {split: recipe.preprocess(rows, split) for split, rows in splits.items()}


def from_rows(spec: Spec, folder: Path, **splits: list[dict[str, Any]]) -> tuple[Recipe, Splits]:
    """The recipe with the sample's tiny model, and `splits` preprocessed; the training rows also serve to measure."""
    recipe, _, source = sampled(spec, folder)
    rows = {split: Dataset.from_list(values) for split, values in splits.items()}
    return recipe, prepared(recipe, {"validation": rows["train"], **rows}, source)


def text_loop(
    spec: Spec, folder: Path, dtype: torch.dtype = torch.float64, dropout: bool = False, rows: int | None = 22
) -> Loop:
    """A loop over some rows of the sample, with a model that is the same every time."""
    recipe, splits, source = sampled(spec, folder)
    if not dropout:
        source = ModelSource(str(folder), config_values=NO_DROPOUT[source.config().model_type])
    if rows:
        splits = {split: found.select(range(min(len(found), rows))) for split, found in splits.items()}
    ready = prepared(recipe, splits, source)
    torch.manual_seed(0)
    module = recipe.load_model(source).to(dtype)
    accelerator = Accelerator(cpu=True)
    parts = assemble(spec, recipe, module, ready, accelerator)
    loop = Loop(spec=spec, recipe=recipe, accelerator=accelerator, save=lambda: None, **vars(parts))
    loop.save = lambda: _at_once(Saved(loop.progress.step, "none", 0, 0.0))
    return loop


def evaluated(loop: Loop) -> dict[str, float]:
    """The numbers of the model as it is."""
    return list(loop._evaluate())[-1].metrics


def trained(loop: Loop) -> dict[str, float]:
    """The numbers at the end of the run."""
    return [event for event in loop.run() if isinstance(event, Evaluated)][-1].metrics


def gradients(loop: Loop, update: int) -> list[torch.Tensor]:
    """The gradients of one update."""
    loop.model.train()
    loop.recipe.backward(loop.model, next(loop.updates(update)))
    return [parameter.grad.clone() for parameter in loop.module.parameters() if parameter.grad is not None]


def interrupted(loop: Loop, again: Loop, after: int) -> Loop:
    """Run `loop` until `after` updates are taken, and from there on `again`."""
    for event in loop.run():
        if isinstance(event, Updated) and event.step == after:
            break
    again.module.load_state_dict(loop.module.state_dict())
    again.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
    again.progress = copy.deepcopy(loop.progress)
    list(again.run(resumed=True))
    return again


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    """The model's weights."""
    return {name: value.detach().clone() for name, value in loop.module.state_dict().items()}


def _at_once(saved: Saved) -> Future[Saved]:
    done: Future[Saved] = Future()
    done.set_result(saved)
    return done
