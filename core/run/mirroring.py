"""A run and its mirror: when the folder is copied, the warnings about that, and the wait for it at the end."""

from __future__ import annotations

from collections.abc import Iterator

from taskrecipe.remote.mirror import KEY, Mirror, is_own_folder
from taskrecipe.run.folder import RunFolder
from taskrecipe.training.control import Control
from taskrecipe.training.events import End, Event, Mirrored, Saved, Warned

PATIENCE = 0.25
"""Seconds between two looks at whether the folder is copied."""


class Mirroring:
    """Copies a run's folder to `[checkpoint].mirror` while the run goes on. Without a URL it does nothing."""

    def __init__(self, folder: RunFolder, url: str | None) -> None:
        self.folder, self.url = folder, url
        self._mirror: Mirror | None = None

    def start(self, warnings: list[str]) -> None:
        """Begin to copy, in the process that writes the folder."""
        if self.url and is_own_folder(self.folder, self.url):
            warnings.append(f"{KEY}: {self.url!r} holds this very folder, so nothing is copied there")
        elif self.url:
            self._mirror = Mirror(self.folder, self.url)
            self._mirror.start()

    def follow(self, events: Iterator[Event]) -> Iterator[Event]:
        """Yield the events and, between them, the warnings about the copy. It is updated after each checkpoint."""
        for event in events:
            if self._mirror is not None and not isinstance(event, End):  # which is the last one
                yield from (Warned(event.step, message) for message in self._mirror.take_warnings())
            yield event
            if self._mirror is not None and isinstance(event, Saved):
                self._mirror.update()

    def finish(self, step: int, control: Control) -> Iterator[Event]:
        """Wait until the whole folder is copied, unless a signal comes. What went wrong is a warning."""
        if self._mirror is None:
            return
        self._mirror.close()
        if not self._mirror.wait(PATIENCE):
            yield Mirrored(step, self._mirror.url, done=False)
        while not self._mirror.wait(PATIENCE):
            if control.has_new_signal:
                self._mirror.give_up()
                break
        if self._mirror.is_complete:
            yield Mirrored(step, self._mirror.url, done=True)
            return
        message = f"{KEY}: the copy at {self._mirror.url} is not complete: it {self._mirror.error}"
        self.folder.log(Warned(step, message).timed_record())
        yield Warned(step, message)
