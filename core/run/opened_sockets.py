"""The sockets that a library has opened, so that they can be ended from outside where it has no way to do so."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self


class OpenedSockets:
    """The sockets that are opened while it is entered, by any thread of this process. Linux only; none elsewhere.

    Those of a port that another thread serves are left out.
    """

    def __init__(self, served_port: int) -> None:
        self._served_port = served_port
        self._found: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._before = _list_sockets()
        return self

    def __exit__(self, *_: object) -> None:
        self._found = dict(_list_sockets().items() - self._before.items())

    def limit_silence(self, seconds: float) -> None:
        """Let reading fail if the other end's machine has not answered for this long: a cut cable says nothing."""
        if not hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux only
            return
        for descriptor in self._found:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def end_sending(self) -> None:
        """Let the other ends know that nothing more comes. Who waits there for data gets an error at once."""
        for descriptor, name in self._found.items():
            if _list_sockets().get(descriptor) != name:  # closed since, and its number may be another file's
                continue
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
                if self._served_port not in (opened.getsockname()[1], opened.getpeername()[1]):
                    opened.shutdown(socket.SHUT_WR)


def _list_sockets() -> dict[int, str]:
    """Return the name that the system has for the socket of each file descriptor."""
    found = {}
    with suppress(OSError):
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                name = str(path.readlink())
                if name.startswith("socket:"):
                    found[int(path.name)] = name
    return found
