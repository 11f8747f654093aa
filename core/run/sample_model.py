"""The model of a run on sample data: tiny, and with weights where a technique needs a pretrained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.model import ModelSource
from taskrecipe.model_parts import find_heads
from taskrecipe.recipe import Recipe
from taskrecipe.system import atomic_files
from taskrecipe.system.library_output import quiet_libraries

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Spec

PRETRAINED = "pretrained"
"""The folder next to the sample's configuration that holds weights to start from."""


def sample_source(folder: Path, spec: Spec) -> ModelSource:
    """Say where the sample's model is, as the techniques of the spec need it."""
    if not any(technique.needs_pretrained for technique in spec.techniques):
        return ModelSource(str(folder))
    return ModelSource(str(folder / PRETRAINED), processor=str(folder), quantize=spec.model.quantize)


def prepare_sample(recipe: Recipe, rows: Any, folder: Path) -> None:
    """Write what the techniques need when a run uses sample data. `folder` holds the sample's own model."""
    with quiet_libraries("transformers"):
        if any(technique.needs_pretrained for technique in recipe.spec.techniques):
            _write_weights(recipe, folder)
        for technique in recipe.spec.techniques:
            technique.prepare_sample(recipe, rows, folder)


def _write_weights(recipe: Recipe, folder: Path) -> None:
    """Write a body for the sample's model, with random weights that are the same every time. Its heads stay new."""
    import torch
    from safetensors.torch import save_file
    from transformers import PreTrainedModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.spec.seed)
        made = recipe.load_model(ModelSource(str(folder)))
    model = next(part for part in made.modules() if isinstance(part, PreTrainedModel))
    heads, seen, weights = find_heads(model), set[int](), {}
    for name, value in model.state_dict(keep_vars=True).items():
        if name not in heads and id(value) not in seen:  # tied weights are written once
            seen.add(id(value))
            weights[name] = value.detach().contiguous()
    with atomic_files.create_folder(folder / PRETRAINED) as target:
        model.config.save_pretrained(target)
        save_file(weights, target / "model.safetensors", {"format": "pt"})
