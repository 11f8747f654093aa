"""`python -m taskrecipe.run.worker`: one of several processes of a run. `taskrecipe.run.processes` starts it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from taskrecipe.run.error_reports import report_error
from taskrecipe.run.joining import init_group
from taskrecipe.run.launchers import FOLDER
from taskrecipe.run.processes import EVENTS, LIFELINE, REQUEST, STORE
from taskrecipe.run.request import Request

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Launch

HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""


def main() -> None:
    """Execute the request together with the other processes; send events and errors to the one that started this."""
    threading.Thread(target=_die_with_parent, args=(int(os.environ[LIFELINE]),), daemon=True).start()
    folder = Path(os.environ[FOLDER])
    request = Request.from_json((folder / REQUEST).read_text())
    with os.fdopen(int(os.environ[EVENTS]), "wb", buffering=0) as file:
        pipe = Pipe(file)
        threading.Thread(target=_send_heartbeats, args=(pipe,), daemon=True).start()
        sys.exit(_work(request, folder / STORE, pipe))


class Pipe:
    """The pipe to the process that started this one. Several threads send lines through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._lock = file, threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        content = json.dumps(message).encode() + b"\n"
        with self._lock:
            while content:  # a pipe takes as much as fits
                content = content[self._file.write(content) :]


def _send_heartbeats(pipe: Pipe) -> None:
    """Let the launcher know that this process is running: one that is stopped sends nothing."""
    with suppress(OSError, ValueError):  # the pipe was closed: this process ends
        while True:
            pipe.send({"alive": True})
            time.sleep(HEARTBEAT_SECONDS)


def _work(request: Request, store: Path, pipe: Pipe) -> int:
    try:
        _execute(request, store, pipe)
    except BaseException as error:
        report = report_error(error)
        pipe.send({"error": report})
        return int(report["code"])
    return 0


def _execute(request: Request, store: Path, pipe: Pipe) -> None:
    resolved = request.resolve()
    _join_group(store, resolved.spec.launch)
    from torch import distributed

    from taskrecipe.run.execute import execute_request

    for event in execute_request(request, resolved):
        pipe.send({"event": event.record()})
    distributed.destroy_process_group()


def _join_group(path: Path, launch: Launch) -> None:
    """Connect to the other processes through a file, so that no port is opened for it."""
    from torch import distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = distributed.FileStore(str(path), size)  # type: ignore[attr-defined]  # public, but not in its __all__
    init_group(store, rank, size, launch)


def _die_with_parent(lifeline: int) -> None:
    """End this process when the one that started it is gone: then nobody holds the other end of the pipe."""
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
