"""A trained run, loaded to be used: its recipe, and its model with exactly the weights that were evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.checkpoints.checkpoint import Checkpoint, find_checkpoint
from taskrecipe.data.file_digest import digest_files
from taskrecipe.errors import UsageError
from taskrecipe.model import ModelSource, load_aligned
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import restore_learned
from taskrecipe.run.export import RECIPE, exported_source, load_exported_model, load_recipe
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import MODEL, SAMPLE, SPEC
from taskrecipe.run.host import fresh_accelerator, preserve_host
from taskrecipe.run.restore import IDENTITY
from taskrecipe.run.sample_model import sample_source
from taskrecipe.system.garbage_collection import paused_garbage_collection
from taskrecipe.system.python_warnings import collect_warnings

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from taskrecipe.plugins.kinds import Effect
    from taskrecipe.recipe import Recipe
    from taskrecipe.spec.spec import Spec


@dataclass(frozen=True)
class Trained:
    """What a run has trained, ready to be used."""

    recipe: Recipe
    """With its processor and what it learned from the training rows."""
    module: torch.nn.Module
    """In evaluation mode, with float32 weights on the CPU."""
    spec: Spec
    step: int | None
    """How many updates these weights have seen; None if the run doesn't say."""
    source: ModelSource
    """Where the processor and the structure of the model come from."""
    weights: Path
    """The folder that holds the weights: `model` or a checkpoint."""
    folder: Path
    """The run's folder."""

    @contextmanager
    def on_device(self) -> Iterator[tuple[Accelerator, torch.nn.Module]]:
        """Yield the model on the device and in the precision that the spec names, as evaluations have it."""
        from taskrecipe.training.setup import make_accelerator

        forward = vars(self.module).get("forward")
        with fresh_accelerator():
            try:
                with preserve_host():
                    accelerator = make_accelerator(self.spec)
                    model = accelerator.prepare_model(self.module.to(accelerator.device), evaluation_mode=True)
                yield accelerator, model
            finally:
                # A precision other than float32 is put around the module's own forward: take it off again.
                vars(self.module).pop("forward", None)
                if forward is not None:
                    self.module.forward = forward


def load_trained(folder: str | Path, at: str = "best", settings: Sequence[str] = ()) -> Trained:
    """Load what a run has trained: the `best` weights, the `last` ones, or those after update N as `step-N`.

    The best ones are those in `model/`, or the best checkpoint of a run that has not ended yet. A checkpoint's weights
    are those that its evaluation saw: their average, if the run keeps one. `settings` replace values of `[predict]`.
    """
    run = RunFolder.open(Path(folder))
    spec, weights = load_spec(run, settings), find_weights(run, at)
    with preserve_host(), paused_garbage_collection():
        if isinstance(weights, Checkpoint):
            return _load_checkpoint(run, spec, weights)
        recipe = load_recipe(spec, run.model)
        module = load_exported_model(recipe, run.model)
        return Trained(recipe, module, spec, weights.step, exported_source(run.model), run.model, run.path)


def load_spec(run: RunFolder, settings: Sequence[str] = ()) -> Spec:
    """Load the spec of a run, with other values of `[predict]`, each as KEY=VALUE."""
    from taskrecipe.spec.resolve import resolve

    for setting in settings:
        if not setting.startswith("predict."):
            raise UsageError(f"--set {setting}: a trained model can't be changed, only how it predicts: predict.KEY=…")
    return resolve(run.path / SPEC, settings).spec


@dataclass(frozen=True)
class Exported:
    """The exported model of a run."""

    path: Path
    step: int | None


def find_weights(run: RunFolder, at: str) -> Exported | Checkpoint:
    """Find the weights of a run that `at` names, without reading them."""
    if not re.fullmatch(r"best|last|step-[0-9]+", at):
        raise UsageError(f"{at!r} names no weights of a run: it takes best, last, or step-N such as step-100")
    exported = _find_export(run) if at == "best" else None
    return exported or _find_checkpoint(run, at)


def digest_weights(weights: Exported | Checkpoint) -> dict[str, str]:
    """Return the sha256 of each file that holds the weights or says how they are used."""
    if isinstance(weights, Checkpoint):
        return {name: record.sha256 for name, record in weights.manifest.files.items()}
    files = sorted(path for path in weights.path.rglob("*") if path.is_file())
    return dict(zip((str(path.relative_to(weights.path)) for path in files), digest_files(files), strict=True))


def _find_export(run: RunFolder) -> Exported | None:
    """Return the exported model; None if there is none, or if a better checkpoint has come since."""
    if not (run.model / RECIPE).is_file():
        return None
    about = {"step": None, **run.read_json(f"{MODEL}/{RECIPE}")}
    with suppress(UsageError):  # the best checkpoint may be gone: it has been exported
        if about["step"] not in (None, find_checkpoint(run.checkpoints, "best").step):
            return None
    return Exported(run.model, about["step"])


def _find_checkpoint(run: RunFolder, at: str) -> Checkpoint:
    try:
        return find_checkpoint(run.checkpoints, at)
    except UsageError as error:
        if at == "best" and not run.model.exists():
            raise UsageError(
                f"{run.path} has no best weights yet: neither {MODEL}/ nor a checkpoint that was evaluated; "
                "wait for its first evaluation, or use its last checkpoint (--at last)"
            ) from error
        raise


def _load_checkpoint(run: RunFolder, spec: Spec, checkpoint: Checkpoint) -> Trained:
    recipe = installed().recipe(spec.recipe)(spec)
    restore_learned(recipe, checkpoint.json(IDENTITY)["learned"])
    source = _find_structure(run, spec)
    recipe.processor = recipe.load_processor(source)
    with collect_warnings():  # about weights that are replaced anyway
        module, effects = _make_module(recipe, source)
    _restore_weights(module, effects, spec, checkpoint)
    return Trained(recipe, module.eval(), spec, checkpoint.step, source, checkpoint.path, run.path)


def _find_structure(run: RunFolder, spec: Spec) -> ModelSource:
    """Say where processor and structure of a checkpoint's model are: in model/, or where the run found them.

    With techniques it is always the latter: they may leave weights out of checkpoints, or change the model.
    """
    if (run.model / RECIPE).is_file() and not spec.techniques:
        return replace(exported_source(run.model), pretrained=False)
    if spec.data.sample:
        return sample_source(run.path / SAMPLE, spec)
    source = ModelSource.of(spec.model)
    return source if spec.techniques else replace(source, pretrained=False)


def _make_module(recipe: Recipe, source: ModelSource) -> tuple[torch.nn.Module, list[Effect]]:
    """Make the module as the run did: weights that a checkpoint leaves out are then the same."""
    import torch

    from taskrecipe.training.randomness import Purpose, seed_everything

    seed_everything(torch.device("cpu"), Purpose.MODEL, recipe.spec.seed)
    module = load_aligned(recipe, source)
    effects = [technique.build(recipe, source) for technique in recipe.spec.techniques]
    for effect in effects:
        module = effect.change_model(module)
    return module, effects


def _restore_weights(module: torch.nn.Module, effects: list[Effect], spec: Spec, checkpoint: Checkpoint) -> None:
    """Load the weights that an evaluation of this checkpoint saw."""
    from taskrecipe.training.ema import copy_weights, switches_weights
    from taskrecipe.training.setup import build_optimizer
    from taskrecipe.training.state import EMA, MODEL, restore_optimizer, saved_weights

    weights = checkpoint.tensors(MODEL)
    if weights.keys() != saved_weights(module, effects).keys():
        raise UsageError(f"{checkpoint.path} holds the weights of another model: their names differ")
    module.load_state_dict(weights, strict=False)
    if spec.train.ema:
        copy_weights(checkpoint.tensors(EMA), module)
        return
    optimizer: Any = build_optimizer(spec, module, effects)
    if switches_weights(optimizer):
        restore_optimizer(optimizer, module, checkpoint)
        optimizer.eval()
