"""The listeners of a run: the log file, the spec's callbacks and its tracker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from taskrecipe.errors import PluginError
from taskrecipe.plugins.kinds import Listener
from taskrecipe.plugins.trackers import Tracking
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import TRACK
from taskrecipe.spec.spec import Spec
from taskrecipe.training.control import Control
from taskrecipe.training.events import Event


def make_listeners(
    spec: Spec,
    folder: RunFolder,
    callbacks: Sequence[Listener],
    failures: list[PluginError],
    warn: Callable[[str], None],
) -> list[Listener]:
    """Make the listeners of the main process. Errors of callbacks are added to `failures`."""
    names = [callback.name for callback in spec.callbacks]
    guarded = [GuardedCallback(*pair, failures) for pair in zip(names, callbacks, strict=True)]
    listeners: list[Listener] = [LogFile(folder), *guarded]
    if tracker := spec.track:
        build = partial(tracker.build, folder.name, str(folder.path / TRACK))
        listeners.append(Tracking(tracker.name, build, spec.model_dump(mode="json"), warn=warn))
    return listeners


class LogFile(Listener):
    """Writes log.jsonl."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_event(self, event: Event, control: Control) -> None:
        """Add a line for each event that is logged."""
        if event.logged:
            self.folder.log(event.timed_record())


class GuardedCallback(Listener):
    """A callback whose errors stop the run after a checkpoint, instead of losing what was trained."""

    def __init__(self, name: str, inner: Listener, failures: list[PluginError]) -> None:
        self.name, self.inner, self.failures = name, inner, failures
        self.has_failed = False

    def on_event(self, event: Event, control: Control) -> None:
        """Pass the event on, unless the callback has failed before."""
        if self.has_failed:
            return
        try:
            self.inner.on_event(event, control)
        except (Exception, SystemExit) as error:
            control.stop(self._record(error))

    def close(self) -> None:
        """Close the callback."""
        try:
            self.inner.close()
        except (Exception, SystemExit) as error:
            self._record(error)

    def _record(self, error: BaseException) -> str:
        failure = PluginError(f"callback {self.name!r} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        self.failures.append(failure)
        self.has_failed = True
        return str(failure)
