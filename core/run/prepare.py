"""Everything before the first update: the recipe with its rows, its model and the techniques around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe import hub
from taskrecipe.data.cache import preprocess_splits
from taskrecipe.data.load import Loaded, load_data
from taskrecipe.model import load_aligned, require_embeddings
from taskrecipe.plugins.kinds import Effect
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe, Splits
from taskrecipe.run.sample_model import prepare_sample, sample_source
from taskrecipe.spec.spec import Spec
from taskrecipe.system.garbage_collection import paused_garbage_collection
from taskrecipe.system.library_output import quiet_libraries
from taskrecipe.system.python_warnings import collect_warnings
from taskrecipe.training.precision import warn_of_precision
from taskrecipe.training.randomness import Purpose, seed_everything
from taskrecipe.training.sharding import original_class, wants_engine, wants_shards

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from taskrecipe.model import ModelSource


@dataclass
class Prepared:
    """What a loop is made of."""

    recipe: Recipe
    loaded: Loaded
    rows: Splits
    module: torch.nn.Module
    effects: list[Effect]
    warnings: list[str] = field(default_factory=list)


def prepare_run(spec: Spec, accelerator: Accelerator, sample_folder: Path) -> Prepared:
    """Load and check the data, preprocess it, and make the model. A sample's tiny model goes into `sample_folder`."""
    recipe = installed().recipe(spec.recipe)(spec)
    with collect_warnings() as messages:
        warn_of_precision(spec.train.precision, accelerator.device)
        # The others find what the main process has fetched and made; those on a machine without it, what their first.
        with accelerator.main_process_first(), accelerator.local_main_process_first():
            loaded, rows = prepare_rows(recipe, sample_folder)
            if spec.data.sample:
                if accelerator.is_main_process:  # the others would write the same files at once
                    prepare_sample(recipe, rows["train"], sample_folder)
                loaded.source = sample_source(sample_folder, spec)
        seed_everything(accelerator.device, Purpose.MODEL, spec.seed)
        with paused_garbage_collection():
            module, effects = _make_model(recipe, loaded.source, rows, accelerator)
    if not spec.data.streaming:
        hub.go_offline()  # nothing more is needed from it, so nothing can wait for it
    return Prepared(recipe, loaded, rows, module, effects, [*loaded.warnings, *messages])


def _make_model(
    recipe: Recipe, source: ModelSource, rows: Splits, accelerator: Accelerator
) -> tuple[torch.nn.Module, list[Effect]]:
    """Load the model, and let techniques change it. If the spec says so, it is sharded."""
    effects: list[Effect] = []

    def make(recording: Callable[[], AbstractContextManager[None]]) -> torch.nn.Module:
        with recording():
            module = load_aligned(recipe, source)
        require_embeddings(module, recipe.processor, _token_columns(rows))
        effects[:] = [technique.build(recipe, source) for technique in recipe.spec.techniques]
        with quiet_libraries("bitsandbytes"), recording():  # it says on the CPU that a kernel could be installed
            for effect in effects:
                module = effect.change_model(module)
        return module

    if not wants_shards(recipe.spec, accelerator) or wants_engine(recipe.spec, accelerator):
        return make(nullcontext), effects  # DeepSpeed divides a model that is there
    from taskrecipe.sharding.building import build_sharded

    return build_sharded(make, recipe.spec, accelerator), effects


def prepare_rows(recipe: Recipe, sample_folder: Path, *, weights: bool = True) -> tuple[Loaded, Splits]:
    """Load and check the rows, load the processor, and preprocess. Without `weights`, none are fetched."""
    loaded = load_data(recipe.spec, recipe, sample_folder, weights=weights)
    with paused_garbage_collection():
        recipe.processor = recipe.load_processor(loaded.source)
    with loaded.locate_rows():
        return loaded, preprocess_splits(recipe, loaded.splits, loaded.source)


def describe_prepared(prepared: Prepared) -> dict[str, str]:
    """Return the data and the model in words."""
    parameters = list(prepared.module.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    counts = [f"{split} {len(rows):,}" for split, rows in prepared.rows.items() if hasattr(rows, "__len__")]
    return {
        "data": f"{prepared.loaded.origin}: {', '.join(counts) or 'streamed'} rows",
        "model": f"{original_class(prepared.module).__name__}, {total:,} parameters"
        + (f", {trained:,} of them trained" if trained < total else ""),
    }


def _token_columns(rows: Splits) -> Iterator[Any]:
    """Yield the columns of token ids of all splits that are stored."""
    for split in rows.values():
        if hasattr(split, "data") and "input_ids" in split.column_names:
            yield split.data.column("input_ids")
