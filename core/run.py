"""The driver: from a resolved spec to a finished run folder, or from an unfinished one onwards."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from taskrecipe.core import durable
from taskrecipe.core.checkpoints.state import pack, unpack
from taskrecipe.core.checkpoints.store import Checkpoint, Checkpoints
from taskrecipe.core.checkpoints.tensorfile import encode, size
from taskrecipe.core.console import ConsoleListener
from taskrecipe.core.data import hub
from taskrecipe.core.data.cache import preprocessed
from taskrecipe.core.data.load import Loaded, load
from taskrecipe.core.differences import require_same_run
from taskrecipe.core.environment import describe
from taskrecipe.core.errors import Interrupted, RecipeError
from taskrecipe.core.modelcard import model_card
from taskrecipe.core.notes import collected
from taskrecipe.core.plugins import Listener, MetricRate
from taskrecipe.core.quiet import quiet
from taskrecipe.core.recipe import Recipe, Splits
from taskrecipe.core.registry import installed
from taskrecipe.core.runfolder import RunFolder
from taskrecipe.core.signals import Signals
from taskrecipe.core.spec.resolve import Resolved
from taskrecipe.core.startup import uncollected
from taskrecipe.core.trackers import Tracking
from taskrecipe.core.training.assembly import assemble
from taskrecipe.core.training.averages import evaluation_weights
from taskrecipe.core.training.batches import naming_dead_workers
from taskrecipe.core.training.control import Control
from taskrecipe.core.training.events import End, Event, Saved, Warned
from taskrecipe.core.training.loop import Loop
from taskrecipe.core.training.progress import Progress
from taskrecipe.core.training.randomness import Purpose, seed_everything

MODEL, OPTIMIZER, AVERAGE, STATE = "model.safetensors", "optimizer.safetensors", "average.safetensors", "state.json"

SETTINGS = ("initial_lr", "weight_decay", "betas", "eps", "momentum", "dampening", "nesterov", "alpha")
"""What an optimizer's groups keep of the spec; the rest of them is state."""


@dataclass
class Prepared:
    """What is known before the first update: the recipe with its rows and its model."""

    recipe: Recipe
    loaded: Loaded
    rows: Splits
    module: torch.nn.Module
    warnings: list[str] = field(default_factory=list)


def prepare(resolved: Resolved, accelerator: Accelerator, scratch: Path) -> Prepared:
    """Load and check the data, preprocess it, and make the model; `scratch` is where a sample's model goes."""
    spec = resolved.spec
    recipe = installed().recipe(spec.recipe)(spec)
    with collected() as notes:
        with accelerator.main_process_first():  # what it fetches and makes, the others find
            loaded = load(spec, recipe, scratch)
            with uncollected():
                recipe.processor = recipe.load_processor(loaded.source)
            rows = preprocessed(recipe, loaded.splits, loaded.source)
        seed_everything(accelerator.device, Purpose.MODEL, spec.seed)
        with uncollected():
            module = recipe.load_model(loaded.source)
    if not spec.data.streaming:
        hub.unplug()  # nothing more is needed of it, so nothing can wait for it
    return Prepared(recipe, loaded, rows, module, [*loaded.warnings, *notes])


class Run:
    """One run: what it is made of, how it is saved and restored, and how it ends."""

    def __init__(self, resolved: Resolved, folder: RunFolder, accelerator: Accelerator) -> None:
        self.resolved, self.spec, self.folder, self.accelerator = resolved, resolved.spec, folder, accelerator
        self.started = time.perf_counter()
        self.store = Checkpoints(
            folder.checkpoints,
            keep=self.spec.checkpoint.keep,
            run_id=folder.run_id,
            spec_hash=hashlib.sha256(self.spec.model_dump_json().encode()).hexdigest(),
        )

    def train(self, *, resume: bool = False, allow: Sequence[str] = ()) -> dict[str, Any]:
        """Train to the end and return the results; whatever ends it early is on disk before it is raised."""
        with Signals() as signals:
            try:
                self.prepared = prepare(self.resolved, self.accelerator, self.folder.path / "sample")
                self.loop = self._make_loop()
                self.loading_seconds = time.perf_counter() - self.started
                self.callbacks = [callback.build() for callback in self.spec.callbacks]
                resumed = resume and self._restore(allow)
                if self.accelerator.is_main_process:
                    self.store.foresee(_checkpoint_bytes(self.loop))
                signals.control = self.loop.control
                self._follow_events(resumed)
                return self._finish()
            except RecipeError as error:
                if self.accelerator.is_main_process:
                    self._record_failure(error)
                raise
            finally:
                self.store.rest()  # before the folder's lock is given back

    def _make_loop(self) -> Loop:
        prepared = self.prepared
        loop = assemble(prepared.recipe, prepared.module, prepared.rows, self.accelerator)
        loop.save = self._save
        return loop

    # Events -----------------------------------------------------------------------------------------

    def _follow_events(self, resumed: bool) -> None:
        listeners = self._listeners() if self.accelerator.is_main_process else []
        with ExitStack() as closing, naming_dead_workers():
            for listener in listeners:
                closing.callback(listener.close)
            for event in self._events(resumed):
                for listener in listeners:
                    listener.hear(event, self.loop.control)

    def _events(self, resumed: bool) -> Iterator[Event]:
        for message in self.prepared.warnings:
            yield Warned(self.loop.progress.step, message)
        yield from self.loop.run(resumed)

    def _listeners(self) -> list[Listener]:
        console = ConsoleListener(self.loop.best_metric[0])
        listeners: list[Listener] = [LogFile(self.folder), *self.callbacks, console]
        if tracker := self.spec.track:
            build = partial(tracker.build, self.folder.name, str(self.folder.path / "track"))
            config = self.spec.model_dump(mode="json")
            listeners.append(Tracking(tracker.name, build, config, warn=console.warn))
        return listeners

    # Checkpoints ------------------------------------------------------------------------------------

    def _save(self) -> Future[Saved] | None:
        """Begin a commit of everything a resumed run needs; the main process writes."""
        if not self.accelerator.is_main_process:
            return None
        start, progress = time.perf_counter(), self.loop.progress
        best = progress.best.step if progress.best else None
        writing = self.store.begin(progress.step, self._contents(), best=best)
        stalled = round(time.perf_counter() - start, 4)
        done: Future[Saved] = Future()

        def tell(finished: Future[Checkpoint]) -> None:
            if error := finished.exception():
                done.set_exception(error)
            else:
                checkpoint = finished.result()
                done.set_result(Saved(checkpoint.step, checkpoint.path.name, checkpoint.bytes, stalled))

        writing.add_done_callback(tell)
        return done

    def _contents(self) -> dict[str, Any]:
        loop = self.loop
        tensors, skeleton = pack(loop.optimizer.state_dict())
        state = {
            "progress": loop.progress.to_json(),
            "position": loop.updates.state(),
            "optimizer": skeleton,
            "schedule": loop.rate.state() if isinstance(loop.rate, MetricRate) else None,
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler else None,
            "callbacks": [callback.state() for callback in self.callbacks],
            "identity": self._identity(),
        }
        contents: dict[str, Any] = {MODEL: loop.module.state_dict(), OPTIMIZER: tensors}
        if loop.average is not None:
            contents[AVERAGE] = loop.average.shadow
        return {**contents, STATE: json.dumps(state).encode()}

    def _restore(self, allow: Sequence[str]) -> bool:
        """Put everything where the newest sound checkpoint has it; False if there is none yet."""
        checkpoint = self._newest()
        if checkpoint is None:
            if self.accelerator.is_main_process:
                self.folder.drop_log_after(-1)
            return False
        state = checkpoint.json(STATE)
        for difference in require_same_run(state["identity"], self._identity(), allow):
            self.prepared.warnings.append(f"not as when the run was saved: {difference}")
        self._load_weights(checkpoint, state)
        loop = self.loop
        loop.progress = Progress.from_json(state["progress"])
        loop.updates.restore(state["position"])
        self._forget_lost_best()
        if isinstance(loop.rate, MetricRate):
            loop.rate.restore(state["schedule"])
        if self.accelerator.scaler and state["scaler"]:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        for callback, kept in zip(self.callbacks, state["callbacks"], strict=True):
            callback.restore(kept)
        if self.accelerator.is_main_process:
            self.folder.drop_log_after(loop.progress.step)
        return True

    def _forget_lost_best(self) -> None:
        """A best checkpoint that was damaged or deleted can't be exported any more; a later one may be the best."""
        best = self.loop.progress.best
        if best and not (self.folder.checkpoints / f"step-{best.step}").is_dir():
            self.prepared.warnings.append(f"the best checkpoint, step-{best.step}, is lost; the search begins anew")
            self.loop.progress.best = None

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, which the main process finds out for all."""
        found: list[str | None] = [None]
        if self.accelerator.is_main_process:
            newest = self.store.newest(on_damage=self.prepared.warnings.append)
            found = [newest.path.name if newest else None]
        broadcast_object_list(found)
        return self.store.at(found[0]) if found[0] else None

    def _load_weights(self, checkpoint: Checkpoint, state: dict[str, Any]) -> None:
        loop = self.loop
        loop.module.load_state_dict(checkpoint.tensors(MODEL))
        fresh = [dict(group) for group in loop.optimizer.param_groups]
        loop.optimizer.load_state_dict(unpack(checkpoint.tensors(OPTIMIZER), state["optimizer"]))
        for group, new in zip(loop.optimizer.param_groups, fresh, strict=True):
            # What the spec says now holds, where a difference was allowed.
            group.update({key: new[key] for key in SETTINGS if key in new})
        if loop.average is not None:
            loop.average.restore(checkpoint.tensors(AVERAGE))

    def _identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with this one."""
        return {
            "spec": self.spec.model_dump(mode="json"),
            "data": self.prepared.loaded.fingerprint,
            "processes": self.accelerator.num_processes,
            "versions": describe(self.resolved.path.parent)["packages"],
        }

    # The end ----------------------------------------------------------------------------------------

    def _finish(self) -> dict[str, Any]:
        """Export the best weights and write the results; a signal ends the run here instead."""
        loop, signum = self.loop, self.loop.control.signum
        results = self._results("stopped" if signum else "finished")
        if self.accelerator.is_main_process:
            if not signum:
                self._export(results)
            self.folder.write_json("results.json", results)
        self.accelerator.wait_for_everyone()
        if signum:
            where = (
                f"checkpoint saved after update {loop.progress.step}" if loop.progress.step else "no update was taken"
            )
            raise Interrupted(signum, f"{loop.control.stopping}; {where}. Go on with: recipe resume {self.folder.path}")
        return results

    def _results(self, status: str) -> dict[str, Any]:
        loop = self.loop
        progress, prepared = loop.progress, self.prepared
        return {
            "status": status,
            "name": self.folder.path.name,
            "recipe": self.spec.recipe,
            "data": prepared.loaded.origin,
            "updates": progress.step,
            "best": vars(progress.best) if progress.best else None,
            "final": progress.metrics,
            "parameters": sum(p.numel() for p in loop.module.parameters()),
            "rows": {split: len(rows) for split, rows in prepared.rows.items() if hasattr(rows, "__len__")},
            "timings": {name: round(value, 3) for name, value in self._timings().items()},
        }

    def _timings(self) -> dict[str, float]:
        """What time was spent on: loading in this part of the run, the rest over all its parts."""
        return {"loading": self.loading_seconds, **self.loop.progress.seconds}

    def _record_failure(self, error: RecipeError) -> None:
        """Say in the folder how the run ended, if it had begun and nothing has said so."""
        if isinstance(error, Interrupted) or not hasattr(self, "loop"):
            return
        step = self.loop.progress.step
        self.folder.log(End(step, "failed", str(error)).record())
        self.folder.write_json("results.json", {**self._results("failed"), "error": str(error)})

    def _export(self, results: dict[str, Any]) -> None:
        """Write the best weights, the processor and a model card into `model/`."""
        loop, best = self.loop, self.loop.progress.best
        if best and best.step != loop.progress.step:
            checkpoint = self.store.at(f"step-{best.step}")
            self._load_weights(checkpoint, checkpoint.json(STATE))
        weights = evaluation_weights(loop.module, loop.optimizer, loop.average)
        with self.folder.replacing_model() as target, weights, quiet("transformers"):
            _save_module(loop.module, target)
            if self.prepared.recipe.processor is not None:
                self.prepared.recipe.processor.save_pretrained(target)
            (target / "README.md").write_text(model_card(self.resolved, results))


def _checkpoint_bytes(loop: Loop) -> int:
    """About how large a checkpoint will be: the weights, and two numbers a trained weight for the optimizer."""
    return size(loop.module.state_dict()) + 2 * sum(parameter.nbytes for parameter in loop.parameters)


def _save_module(module: Any, target: Path) -> None:
    """Write a model the way it knows itself, or its weights alone."""
    if hasattr(module, "save_pretrained"):
        module.save_pretrained(target)
    else:
        durable.write_new(target / MODEL, encode(module.state_dict()))


class LogFile(Listener):
    """Writes log.jsonl."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def hear(self, event: Event, control: Control) -> None:
        """Add a line, if the event has numbers to tell."""
        if event.logged:
            self.folder.log(event.record())
