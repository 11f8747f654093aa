"""Vision recipes on a few drawn images with their tiny models, in this process."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Batch, Recipe, Splits
from taskrecipe.spec.spec import Spec
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_loop
from tests.support.loops import learn_and_check

_FOLDER = tempfile.TemporaryDirectory()


@dataclass
class Ready:
    """A recipe that has its processor, its preprocessed rows, and where its model comes from."""

    recipe: Recipe
    rows: Splits
    source: ModelSource


def vision_spec(recipe: str, task: Mapping[str, Any] | None = None, **tables: Mapping[str, Any]) -> Spec:
    """A short run, with what suits the sample; `task` and `tables` are merged in."""
    values: dict[str, Any] = {
        "spec_version": 1,
        "recipe": recipe,
        "seed": 7,
        "model": {"name": "none"},
        "data": {"sample": True},
        "log": {"every": 1},
    }
    for key, value in installed().recipe(recipe).sample_settings.items():
        table, _, name = key.partition(".")
        values.setdefault(table, {})[name] = value
    short = {"train": {"epochs": 1, "batch_size": 8}, "schedule": {"warmup": 0}, "evaluate": {"every": "end"}}
    for changes in (short, {"task": task or {}}, tables):
        for name, table in changes.items():
            values[name] = {**values.get(name, {}), **table}
    return Spec.model_validate(values)


@cache
def sample(recipe: str) -> tuple[Splits, Path]:
    """The recipe's sample, and the folder of the tiny model that fits it."""
    folder = Path(_FOLDER.name) / recipe
    return installed().recipe(recipe)(vision_spec(recipe)).sample(folder), folder


def prepared(spec: Spec, splits: Splits | None = None, rows: int | None = None) -> Ready:
    """The recipe with its tiny model, on `splits` or on (the first `rows` of) its sample."""
    recipe = installed().recipe(spec.recipe)(spec)
    drawn, folder = sample(spec.recipe)
    splits = splits or {name: found.select(range(rows or len(found))) for name, found in drawn.items()}
    learn_and_check(recipe, splits)
    source = ModelSource(str(folder))
    recipe.processor = recipe.load_processor(source)
    return Ready(recipe, {split: recipe.preprocess(found, split) for split, found in splits.items()}, source)


def vision_loop(ready: Ready, spec: Spec, dtype: torch.dtype = torch.float32) -> Loop:
    """A loop with a model that is the same every time; it and the images have numbers of `dtype`."""
    recipe = copy.copy(ready.recipe)
    recipe.spec, recipe.options = spec, spec.task
    collate = recipe.collate
    recipe.collate = lambda rows: in_precision(collate(rows), dtype)
    torch.manual_seed(0)
    module = recipe.load_model(ready.source).to(dtype)
    accelerator = Accelerator(cpu=True)
    return make_loop(recipe, module, ready.rows, accelerator)


def in_precision(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with its numbers, but for whole ones, as `dtype`."""
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}


def encoded(pixels: np.ndarray, mode: str | None = None, kind: str = "PNG", **options: Any) -> dict[str, Any]:
    """An image as an encoded column holds it."""
    from PIL import Image

    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, format=kind, **options)
    return {"bytes": buffer.getvalue(), "path": None}
