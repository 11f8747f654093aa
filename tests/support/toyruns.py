"""Runs of the toy recipe, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.checkpoints.store import Checkpoints
from taskrecipe.plugins.kinds import Effect
from taskrecipe.plugins.registry import Plugin, Registry
from taskrecipe.spec.spec import Spec
from taskrecipe.training.events import Event, Updated
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_loop
from taskrecipe.training.state import Progress
from tests.support.toys import Tag, tag_rows


def toy_registry() -> Registry:
    return Registry([*Registry.read().plugins, Plugin("recipes", "tag", "toys", "1", "tests.support.toys:Tag")])


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


def toy_loop(
    spec: Spec,
    rows: int = 37,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
    effects: Sequence[Effect] = (),
    folder: Path | None = None,
) -> Loop:
    """A loop over `rows` training rows, with a model that is always the same at the start.

    It writes checkpoints into `folder`, and none without it.
    """
    recipe = Tag(spec)
    torch.manual_seed(0)
    module = recipe.load_model(None).to(dtype)
    splits = {"train": tag_rows(rows), "validation": tag_rows(21, seed=1)}
    store = Checkpoints(folder, keep=99, run_id="toy") if folder else None
    loop = make_loop(recipe, module, splits, Accelerator(cpu=True), effects=effects, store=store)
    loop.state.progress = progress or Progress()
    return loop


def run_to_end(loop: Loop) -> list[Event]:
    return list(loop.run())


def updates(events: list[Event]) -> list[Updated]:
    return [event for event in events if isinstance(event, Updated)]
