"""Runs of the toy recipe, in this process."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import torch
from accelerate import Accelerator
from loops import saving_nothing
from toys import Tag, tag_rows

from taskrecipe.core.registry import Plugin, Registry
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.training.assembly import assemble
from taskrecipe.core.training.events import Event, Updated
from taskrecipe.core.training.loop import Loop
from taskrecipe.core.training.progress import Progress


def toy_registry() -> Registry:
    entry = EntryPoint("tag", "toys:Tag", "taskrecipe.recipes")
    return Registry([*Registry.read().plugins, Plugin("recipes", "tag", "toys", "1", "toys:Tag", entry)])


def toy_spec(**tables: dict[str, Any]) -> Spec:
    """A short run of the toy recipe; `tables` are merged in."""
    values: dict[str, Any] = {
        "spec_version": 1,
        "recipe": "tag",
        "seed": 7,
        "model": {"name": "none"},
        "data": {"sample": True},
        "train": {"epochs": 2, "batch_size": 8, "learning_rate": 0.01, "order": "shuffled"},
        "log": {"every": 1},
        "evaluate": {"best": "accuracy"},
    }
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table} if isinstance(table, dict) else table
    return Spec.model_validate(values, context={"registry": toy_registry()})


def toy_loop(spec: Spec, rows: int = 37, dtype: torch.dtype = torch.float32, progress: Progress | None = None) -> Loop:
    """A loop over `rows` training rows, with a model that is always the same at the start."""
    recipe = Tag(spec)
    torch.manual_seed(0)
    module = recipe.load_model(None).to(dtype)
    splits = {"train": tag_rows(rows), "validation": tag_rows(21, seed=1)}
    loop = assemble(recipe, module, splits, Accelerator(cpu=True))
    loop.progress = progress or Progress()
    return saving_nothing(loop)


def run_to_end(loop: Loop) -> list[Event]:
    return list(loop.run())


def updates(events: list[Event]) -> list[Updated]:
    return [event for event in events if isinstance(event, Updated)]
