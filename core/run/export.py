"""The exported model of a run: written at the end of training, and loaded again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.checkpoints.safetensors_file import encode_tensors, load_tensors
from taskrecipe.errors import UsageError
from taskrecipe.model import ModelSource, load_aligned
from taskrecipe.plugins.registry import installed
from taskrecipe.quantization import copy_dequantized
from taskrecipe.recipe import Recipe, learned_values, restore_learned
from taskrecipe.run.folder_names import SAMPLE
from taskrecipe.run.identity import digest_source
from taskrecipe.run.sample_model import sample_source
from taskrecipe.system import atomic_files
from taskrecipe.system.library_output import quiet_libraries

if TYPE_CHECKING:
    import torch

    from taskrecipe.plugins.kinds import Effect
    from taskrecipe.spec.spec import Spec

RECIPE = "recipe.json"
"""The recipe's name and learned values: what is needed, besides the spec, to load the model again."""
BASE = "base"
"""The digests of the base model's files, if a technique has written only a part; absent if the model is whole."""
WEIGHTS = "weights.safetensors"
"""All weights, by our names, of a model that `from_pretrained` of transformers can't load as a whole."""


def export_model(
    module: torch.nn.Module, recipe: Recipe, effects: list[Effect], folder: Path, *, base: ModelSource, step: int
) -> bool:
    """Write the model after update `step`, its processor and what the recipe learned into `folder`.

    Return whether the model is whole. `base` is what training started from. Where a technique exports only a part of
    the model, such as adapters, the rest is read from there again.
    """
    about: dict[str, Any] = {"recipe": recipe.spec.recipe, "step": step, "learned": learned_values(recipe)}
    with quiet_libraries("transformers"):
        is_part = any(effect.export(module, folder) for effect in effects)
        if is_part:
            about[BASE] = {"files": digest_source(base, weights=True)}
        else:
            _save_module(module, folder)
        if recipe.processor is not None:
            recipe.processor.save_pretrained(folder)
    atomic_files.write_new(folder / RECIPE, [json.dumps(about, indent=2).encode()])
    return not is_part


def load_recipe(spec: Spec, folder: Path) -> Recipe:
    """Make the recipe of a trained model, with its processor and what it learned in training."""
    about = read_about(folder)
    recipe = installed().recipe(spec.recipe)(spec)
    restore_learned(recipe, about["learned"])
    recipe.processor = recipe.load_processor(exported_source(folder))
    return recipe


def load_exported_model(recipe: Recipe, folder: Path, *, merged: bool = False) -> torch.nn.Module:
    """Load the model that `export_model` wrote, in evaluation mode.

    `merged`: as one model of the usual layout, with adapters merged and without quantized numbers. Its outputs then
    differ a little.
    """
    base = _find_base(recipe.spec, folder)
    if base is None:
        module = load_aligned(recipe, exported_source(folder))
        if (folder / WEIGHTS).exists():
            module.load_state_dict(load_tensors(folder / WEIGHTS))
        return module.eval()
    if not merged:
        return _fill_base(load_aligned(recipe, base), recipe.spec, folder)
    module = _fill_base(_load_plain(recipe, base), recipe.spec, folder)
    for technique in reversed(recipe.spec.techniques):
        module = technique.merge(module)
    return module


def _load_plain(recipe: Recipe, base: ModelSource) -> torch.nn.Module:
    """Load the base model without quantized numbers: the plain numbers that these stand for."""
    plain = load_aligned(recipe, replace(base, quantize=None))
    if base.quantize is not None:
        copy_dequantized(load_aligned(recipe, base), plain)
    return plain


def read_about(folder: Path) -> dict[str, Any]:
    """Read what an exported model says about itself."""
    try:
        return dict(json.loads((folder / RECIPE).read_bytes()))
    except OSError as error:
        raise UsageError(f"{folder} holds no exported model: it has no {RECIPE} ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{folder / RECIPE} is damaged: {error}") from error


def _find_base(spec: Spec, folder: Path) -> ModelSource | None:
    """Return where the weights are that a technique left out of the export; None if the model is whole."""
    kept = read_about(folder).get(BASE)
    if kept is None:
        return None
    base = sample_source(folder.parent / SAMPLE, spec) if spec.data.sample else ModelSource.of(spec.model)
    found = digest_source(base, weights=True) if base.folder and base.folder.is_dir() else {}
    different = [name for name, digest in kept["files"].items() if found.get(name) != digest]
    if different:
        raise UsageError(
            f"{folder} holds only what was trained; the rest is {base.name!r}, whose {different[0]!r} is missing or "
            "has changed since. Put it back as it was"
        )
    return replace(base, exported=True)


def _fill_base(module: torch.nn.Module, spec: Spec, folder: Path) -> torch.nn.Module:
    with quiet_libraries("bitsandbytes"):
        for technique in spec.techniques:
            module = technique.load_exported(module, folder)
    return module.eval()


def exported_source(folder: Path) -> ModelSource:
    """Say where the model comes from. Where all weights are in our own file, only its structure is read there."""
    structure = (folder / "config.json").exists()
    return ModelSource(
        str(folder) if structure else None, exported=True, pretrained=structure and not (folder / WEIGHTS).exists()
    )


def _save_module(module: torch.nn.Module, folder: Path) -> None:
    from transformers import PreTrainedModel

    save: Any = getattr(module, "save_pretrained", None)
    if save is not None:
        save(folder)
    if not isinstance(module, PreTrainedModel):
        atomic_files.write_new(folder / WEIGHTS, encode_tensors(module.state_dict()))
