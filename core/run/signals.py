"""Signals that ask a run to save and stop: the first one does, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Protocol

from taskrecipe.errors import Interrupted

CAUGHT = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
"""Ctrl-C, a request to end, a dropped connection, and the warnings that batch systems send before a time limit."""


class Interruptible(Protocol):
    """What a signal is passed to; `taskrecipe.training.control.Control` is one."""

    def interrupt(self, signum: int, reason: str) -> bool:
        """Stop because of a signal. Return False if one came before."""


class Signals:
    """While entered, signals go to `control`; before there is one, they end the run where it is.

    Python lets only the main thread handle signals: in any other thread nothing is changed.
    """

    def __init__(self) -> None:
        self.control: Interruptible | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._handle) for signum in CAUGHT if _is_heard(signum)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def _handle(self, signum: int, _: FrameType | None) -> None:
        name = signal.Signals(signum).name
        if self.control is None:
            raise Interrupted(signum, f"interrupted by {name} before the first update")
        if not self.control.interrupt(signum, f"interrupted by {name}"):
            os._exit(128 + signum)


def _is_heard(signum: int) -> bool:
    """Whether the process listens to the signal at all; `nohup` makes it ignore SIGHUP."""
    return signum == signal.SIGINT or signal.getsignal(signum) is not signal.SIG_IGN
