"""Techniques on a few rows of a recipe's sample with its tiny model, in this process."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.run.sample_model import prepare_sample, sample_source
from taskrecipe.spec.spec import Spec
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_loop
from tests.support.textruns import NO_DROPOUT, Ready, ready, text_spec

MRPC = {"name": "mrpc"}


def technique_spec(*techniques: dict[str, Any], recipe: str = "glue", task: Any = None, **tables: Any) -> Spec:
    """A short run of a recipe, by default glue, with techniques."""
    plain = text_spec(recipe, MRPC if task is None else task, **tables)
    return Spec.model_validate({**plain.model_dump(exclude_unset=True), "techniques": list(techniques)})


def ready_with(spec: Spec, rows: int | None = None) -> Ready:
    """A recipe on (the first `rows` of) its sample, and what its techniques need there."""
    run = ready(spec, rows=rows)
    folder = Path(str(run.source.folder))
    prepare_sample(run.recipe, run.rows["train"], folder)
    run.source = sample_source(folder, spec)
    return run


def technique_loop(
    run: Ready, spec: Spec | None = None, dtype: torch.dtype = torch.float64, dropout: bool = False
) -> Loop:
    """A loop with the techniques of `spec`, and a model that is the same every time."""
    recipe, source = copy.copy(run.recipe), run.source
    recipe.spec = spec or recipe.spec
    if not dropout:
        source = replace(source, config_values=NO_DROPOUT[source.config().model_type])
    torch.manual_seed(0)
    module = recipe.load_model(source).to(dtype)
    effects = [technique.build(recipe, source) for technique in recipe.spec.techniques]
    for effect in effects:
        module = effect.change_model(module)
    return make_loop(recipe, module, run.rows, Accelerator(cpu=True), effects=effects)
