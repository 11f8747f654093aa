"""One run in its folder: prepare, restore if resumed, train while listeners receive the events, export, record."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain

from accelerate import Accelerator

from taskrecipe.checkpoints.store import Checkpoints, PartWriter, Writers
from taskrecipe.errors import Interrupted, NonFiniteError, PluginError, UnmetExpectationError, UsageError
from taskrecipe.run.conclusion import Conclusion
from taskrecipe.run.finish import finish_run, write_run_report
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import SAMPLE
from taskrecipe.run.identity import run_identity
from taskrecipe.run.listeners import make_listeners
from taskrecipe.run.mirroring import Mirroring
from taskrecipe.run.pause import Pause
from taskrecipe.run.peers import Peers
from taskrecipe.run.prepare import Prepared, describe_prepared, prepare_run
from taskrecipe.run.record import RunRecord
from taskrecipe.run.restore import IDENTITY, restore_run
from taskrecipe.run.signals import Signals
from taskrecipe.spec.resolve import Resolved
from taskrecipe.training.events import About, End, Evaluated, Event, Sample, Start, Warned
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_loop
from taskrecipe.training.sharding import wants_shards


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
        self.record = RunRecord(resolved, folder, accelerator)

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
            self.record.close()
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
        if self.store:
            self.record.log_start(step, describe_prepared(prepared))
        first = [Sample(step, sample_reason)] if sample_reason else []
        warned = [Warned(step, message) for message in prepared.warnings]
        conclusion = Conclusion(loop, prepared, self.folder, self.resolved.folder)
        yield from self._follow(conclusion, [*first, *warned], resumed, pause)
        unmet = finish_run(conclusion, self.resolved, self.identity["hub"], self.loading_seconds)
        if self.store and self.spec.report.enabled and not loop.is_stopped:
            yield from self._report(step=loop.progress.step)
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
        step, best = loop.progress.step, loop.progress.best
        self.store.recover(step or None, best.step if best else None)
        self.store.require_space(loop.state.estimated_bytes())
        lost = self.record.write_start(self.identity, step)
        if lost:
            prepared.warnings.append(f"{lost} damaged lines were removed from log.jsonl")
        self.mirroring.start(prepared.warnings)

    def _follow(
        self, conclusion: Conclusion, first: list[Event], resumed: bool, pause: Pause | None
    ) -> Iterator[Event]:
        """Send every event to the listeners of this process, then to the caller."""
        loop = conclusion.loop
        failures: list[PluginError] = []
        with ExitStack() as closing:
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
        self.record.log_warning(self.loop.progress.step if self.loop else 0, message)

    # The end ----------------------------------------------------------------------------------------

    def _preview_command(self, error: NonFiniteError) -> str:
        return shlex.join(["recipe", "preview", str(self.folder.path), "--update", str(error.update)])

    def _report(self, step: int) -> Iterator[Event]:
        event = write_run_report(self.folder.path, step)
        if isinstance(event, Warned):
            self._log_warning(event.message)
        yield event

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
        has_failed = not isinstance(error, Interrupted | UnmetExpectationError)
        if has_failed and self.loop is not None and self._may_record():
            self.record.write_failure(self.loop.progress, error)
