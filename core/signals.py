"""SIGINT and SIGTERM: the first asks the run to save and stop, the second ends it at once."""

from __future__ import annotations

import os
import signal
from types import FrameType

from taskrecipe.core.errors import Interrupted
from taskrecipe.core.training.control import Control

CAUGHT = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """While entered, signals go to `control`; before there is one, they end the run where it is."""

    def __init__(self) -> None:
        self.control: Control | None = None

    def __enter__(self) -> Signals:
        self.before = {signum: signal.signal(signum, self._handle) for signum in CAUGHT}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self.before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, _: FrameType | None) -> None:
        if self.control is None:
            raise Interrupted(signum, f"interrupted by {signal.Signals(signum).name} before the first update")
        if not self.control.interrupt(signum, f"interrupted by {signal.Signals(signum).name}"):
            os._exit(128 + signum)


def leave_to_parent(_: int = 0) -> None:
    """In a helper process: a Ctrl-C goes to the whole group, but stopping is the parent's to do."""
    for signum in CAUGHT:
        signal.signal(signum, signal.SIG_IGN)
