"""One run in its folder: prepare, restore if resumed, train while listeners receive the events, export, record."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.checkpoints.store import Checkpoints, PartWriter, Writers
from taskrecipe.errors import (
    Interrupted,
    NonFiniteError,
    PluginError,
    RecipeError,
    UnmetExpectationError,
    UsageError,
)
from taskrecipe.export.model_card import write_card
from taskrecipe.export.portable_spec import SPEC as PORTABLE_SPEC
from taskrecipe.export.portable_spec import write_portable_spec
from taskrecipe.export.run_card import has_chat_template, make_card
from taskrecipe.remote.urls import is_url
from taskrecipe.run.conclusion import Conclusion
from taskrecipe.run.device import describe_device
from taskrecipe.run.environment import describe_environment, describe_spec_folder
from taskrecipe.run.expectations import check_expectations, describe_unmet
from taskrecipe.run.export import export_model
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import ENVIRONMENT, RESULTS, SAMPLE, SPEC
from taskrecipe.run.identity import run_identity
from taskrecipe.run.listeners import make_listeners
from taskrecipe.run.mirroring import Mirroring
from taskrecipe.run.pause import Pause
from taskrecipe.run.peers import Peers
from taskrecipe.run.prepare import Prepared, describe_prepared, prepare_run
from taskrecipe.run.restore import IDENTITY, restore_run
from taskrecipe.run.results import describe_progress, make_results
from taskrecipe.run.signals import Signals
from taskrecipe.spec.resolve import Resolved
from taskrecipe.system.tracebacks import keep_traceback
from taskrecipe.training.batches import report_dead_workers
from taskrecipe.training.ema import evaluation_weights
from taskrecipe.training.events import About, End, Evaluated, Event, Reported, Sample, Start, Warned
from taskrecipe.training.exchange import broadcast_json
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_loop
from taskrecipe.training.sharding import help_gather, wants_shards, whole_weights
from taskrecipe.training.state import saved_weights


class TrainingRun:
    """Trains in one process or in each of several; only the main process writes into the folder."""

    def __init__(
        self, resolved: Resolved, folder: RunFolder, accelerator: Accelerator, signals: Signals, peers: Peers
    ) -> None:
        self.resolved, self.spec, self.folder = resolved, resolved.spec, folder
        self.accelerator, self.signals, self.peers = accelerator, signals, peers
        self.started = time.perf_counter()
        self.store: Checkpoints | None = None
        """Where the main process writes checkpoints; None in other processes."""
        self.parts: PartWriter | None = None
        self.loop: Loop | None = None
        self.mirroring = Mirroring(folder, self.spec.checkpoint.mirror)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="environment")
        self._environment = self._thread.submit(self._describe_environment)

    def events(
        self, *, resume: bool, allow: Sequence[str], sample_reason: str | None, pause: Pause | None = None
    ) -> Iterator[Event]:
        """Train to the end, or to `pause`. Whatever else ends the run is recorded in the folder before it is raised."""
        try:
            yield from self._record_errors(self._train(resume, allow, sample_reason, pause))
        except Exception:
            yield from self._finish_mirror()
            raise
        else:
            yield from self._finish_mirror()
        finally:
            self._thread.shutdown()
            for writer in (self.store, self.parts):
                if writer is not None:
                    writer.drain()  # before the folder's lock is released

    def _train(
        self, resume: bool, allow: Sequence[str], sample_reason: str | None, pause: Pause | None
    ) -> Iterator[Event]:
        """Prepare, train, export."""
        prepared = prepare_run(self.spec, self.accelerator, self.folder.path / SAMPLE)
        yield About(0, describe_prepared(prepared))
        loop = self._make_loop(prepared)
        resumed = resume and restore_run(loop, self.checkpoints, self.identity, allow, prepared.warnings)
        self._record_start(loop, prepared)
        self.loop, self.signals.control = loop, loop.control
        step = loop.progress.step
        self._log_start(step, prepared)
        first = [Sample(step, sample_reason)] if sample_reason else []
        warned = [Warned(step, message) for message in prepared.warnings]
        conclusion = Conclusion(loop, prepared, self.folder, self.resolved.folder)
        yield from self._follow(conclusion, [*first, *warned], resumed, pause)
        unmet = self._finish(conclusion)
        if not loop.is_stopped:
            yield from self._write_report(loop)
        if unmet:
            raise UnmetExpectationError(unmet)

    def _finish_mirror(self) -> Iterator[Event]:
        if self.loop is not None and self.store is not None:
            self.store.drain()
            yield from self.mirroring.finish(self.loop.progress.step, self.loop.control)

    def _record_errors(self, events: Iterator[Event]) -> Iterator[Event]:
        """Record in the folder what ends the run, before it is raised."""
        try:
            yield from events
        except NonFiniteError as error:
            named = NonFiniteError(f"{error}; look at them: {self._preview_command(error)}", error.update)
            self._record_failure(named)
            raise named from error.__cause__
        except Exception as error:
            cause = self.peers.explain(error)
            self._record_failure(cause)
            if cause is error:
                raise
            raise cause from error

    def _make_loop(self, prepared: Prepared) -> Loop:
        self.loading_seconds = time.perf_counter() - self.started
        techniques = [] if self.spec.data.sample else self.spec.techniques  # a sample brings all models it needs
        further = [source for technique in techniques for source in technique.models()]
        self.identity = run_identity(
            self.spec, prepared.loaded, prepared.recipe, self.accelerator.num_processes, further
        )
        self.callbacks = [callback.build() for callback in self.spec.callbacks]
        return make_loop(
            prepared.recipe,
            prepared.module,
            prepared.rows,
            self.accelerator,
            effects=prepared.effects,
            listeners=self.callbacks,
            store=self._make_store(),
        )

    def _make_store(self) -> Checkpoints | PartWriter | None:
        """Return what writes the checkpoints of this process; None if it writes nothing."""
        peers = self._join_peers() if wants_shards(self.spec, self.accelerator) else None
        folder, run_id, constant = self.folder.checkpoints, self.folder.run_id, json.dumps(self.identity).encode()
        keep = self.spec.checkpoint.keep
        self.checkpoints = Checkpoints(folder, keep=keep, run_id=run_id, constant={IDENTITY: constant}, peers=peers)
        if self.accelerator.is_main_process:
            self.store = self.checkpoints
            return self.store
        self.parts = PartWriter(folder, run_id=run_id, peers=peers) if peers else None
        return self.parts

    @staticmethod
    def _join_peers() -> Writers:
        from taskrecipe.sharding.peers import CheckpointPeers

        return CheckpointPeers()

    # Training ---------------------------------------------------------------------------------------

    def _record_start(self, loop: Loop, prepared: Prepared) -> None:
        """Write what the run is made of. From here on the folder changes."""
        if not self.store:
            return
        self.store.recover()
        self.store.require_space(loop.state.estimated_bytes())
        lost = self.folder.drop_log_after(loop.progress.step if loop.progress.step else -1)
        if lost:
            prepared.warnings.append(f"{lost} damaged lines were removed from log.jsonl")
        about = {
            "threads": torch.get_num_threads(),
            **describe_spec_folder(self.resolved.folder, self.folder.path),
            "data": self.identity["rows"],
            **{key: self.identity[key] for key in ("plugins", "hub", "model_files")},
        }
        self.folder.write_json(ENVIRONMENT, {**self._environment.result(), **about})
        # After the record, which names the folder that its paths are relative to.
        kept = self.folder.path / SPEC
        same_file = self.resolved.path.resolve() == kept.resolve()
        self.folder.write_text(SPEC, self.resolved.to_toml(kept.read_text("utf-8") if same_file else None))
        self.mirroring.start(prepared.warnings)

    def _log_start(self, step: int, prepared: Prepared) -> None:
        """Log the facts that the console printed before there was a log."""
        if self.store:
            device = describe_device(self.accelerator, self.spec.train.precision)
            self.folder.log(About(step, {"device": device, **describe_prepared(prepared)}).timed_record())

    def _describe_environment(self) -> dict[str, Any]:
        """Return what the run was started with. It runs git, so it is called while data and model are loaded."""
        given = [[paths] if isinstance(paths, str) else paths for paths in self.spec.data.files.values()]
        files = [self.resolved.path, *(Path(path) for paths in given for path in paths if not is_url(path))]
        folder, processes = self.resolved.path.parent, self.accelerator.num_processes
        engine = ["deepspeed"] if self.spec.launch.engine == "deepspeed" else []
        return describe_environment(folder, files=files, packages=engine, processes=processes)

    def _follow(
        self, conclusion: Conclusion, first: list[Event], resumed: bool, pause: Pause | None
    ) -> Iterator[Event]:
        """Send every event to the listeners of this process, then to the caller."""
        loop = conclusion.loop
        failures: list[PluginError] = []
        with ExitStack() as closing, report_dead_workers():
            arguments = self.spec, self.folder, self.callbacks, failures, self._log_warning
            listeners = make_listeners(*arguments) if self.store else []
            for listener in listeners:
                closing.callback(listener.close)
            training = self._conclude(loop.run(resumed), conclusion, failures)
            for event in chain(first, self.mirroring.follow(training)):
                if failures and isinstance(event, End):
                    break  # the loop has stopped as asked, but the run has failed
                for listener in listeners:
                    listener.on_event(event, loop.control)
                # A run that was killed right after the evaluation at which it was to pause makes none when it starts.
                has_evaluated = isinstance(event, Evaluated | Start) and loop.progress.evaluated == loop.progress.step
                if pause is not None and has_evaluated and (reason := pause.find_reason(loop)):
                    loop.control.pause(reason)
                yield event
        if failures:
            raise failures[0]

    @staticmethod
    def _conclude(events: Iterator[Event], conclusion: Conclusion, failures: list[PluginError]) -> Iterator[Event]:
        """Put what is done after the last update before the event that ends the run."""
        for event in events:
            if not isinstance(event, End):
                yield event
                continue
            if event.status == "finished" and not failures:
                yield from conclusion.events()
            yield conclusion.loop.end()

    def _log_warning(self, message: str) -> None:
        self.folder.log(Warned(self.loop.progress.step if self.loop else 0, message).timed_record())

    # The end ----------------------------------------------------------------------------------------

    def _finish(self, conclusion: Conclusion) -> str | None:
        """Export the best weights and write the results; return what `[expect]` says and was not met.

        A run that was stopped early exports nothing. If a signal did it, raise `Interrupted`.
        """
        loop, found = conclusion.loop, None
        signum = loop.control.signum
        about = {"name": self.folder.name, "hub": self.identity["hub"]}
        timings = {"loading": self.loading_seconds, **loop.progress.seconds, "conclusion": conclusion.seconds}
        results = make_results(conclusion, about, timings)
        if not loop.is_stopped:
            self._export(conclusion, results)
        if self.store:
            if loop.is_stopped:
                results |= {"reason": loop.control.stopping, "paused": loop.control.paused and not signum}
            else:
                results["expect"] = check_expectations(self.spec.expect, results, self.folder.checkpoints)
                found = describe_unmet(results["expect"])
            self.folder.write_json(RESULTS, results)
        unmet: str | None = broadcast_json(found)
        if signum:
            step = loop.progress.step
            saved = f"checkpoint saved after update {step}" if step else "no update was taken"
            raise Interrupted(
                signum, f"{loop.control.stopping}; {saved}. Continue with: recipe resume {self.folder.path}"
            )
        return unmet

    def _export(self, conclusion: Conclusion, results: dict[str, Any]) -> None:
        """Export the weights, which are the best ones since the conclusion. All processes take part, one writes."""
        state, effects = conclusion.loop.state, conclusion.prepared.effects
        names = saved_weights(state.module, effects)
        with evaluation_weights(state.module, state.optimizer, state.ema):
            if self.store:
                with self.folder.replacing_model() as target, whole_weights(state.module, names, target):
                    self._write_model(conclusion, results, target)
            else:
                help_gather(state.module, names)

    def _write_model(self, conclusion: Conclusion, results: dict[str, Any], target: Path) -> None:
        """Write the model with its card and its spec into a folder."""
        module, prepared = conclusion.loop.state.module, conclusion.prepared
        base = prepared.loaded.source
        whole = export_model(module, prepared.recipe, prepared.effects, target, base=base, step=conclusion.step)
        architecture = type(module).__name__ if whole else None
        card = make_card(self.resolved, results, base, architecture, self.folder.path)
        card = replace(card, is_chat=has_chat_template(target))
        (target / "README.md").write_text(write_card(card), encoding="utf-8")
        (target / PORTABLE_SPEC).write_text(write_portable_spec(self.resolved), encoding="utf-8")

    def _preview_command(self, error: NonFiniteError) -> str:
        return shlex.join(["recipe", "preview", str(self.folder.path), "--update", str(error.update)])

    def _write_report(self, loop: Loop) -> Iterator[Event]:
        """Write the report of a run that has finished. Whatever goes wrong is a warning: the run is done."""
        if not self.store or not self.spec.report.enabled:
            return
        try:
            from taskrecipe.report.write import write_report

            path = write_report([self.folder.path])
        except Exception as error:
            message = f"no report was written: {type(error).__name__}: {error}"
            self._log_warning(message)
            yield Warned(loop.progress.step, message)
        else:
            yield Reported(loop.progress.step, str(path))

    def _may_record(self) -> bool:
        """Whether this process writes into the folder: the main one; or after its loss one that gets its lock."""
        if self.store is not None or not self.peers.main_is_lost:
            return self.store is not None
        try:
            self.folder.lock()
        except UsageError:
            return False
        return True

    def _record_failure(self, error: Exception) -> None:
        """Record in the folder that a run which had started has failed."""
        skipped = isinstance(error, Interrupted | UnmetExpectationError)
        if skipped or self.loop is None or not self._may_record():
            return
        progress, message = self.loop.progress, str(error) or type(error).__name__
        if not isinstance(error, RecipeError):
            keep_traceback(error, self.folder.path)
        self.folder.log(End(progress.step, "failed", message).timed_record())
        about = {"name": self.folder.name, "recipe": self.spec.recipe, "error": message}
        self.folder.write_json(RESULTS, {"status": "failed", **about, **describe_progress(progress)})
