"""Several processes on this machine: started together, watched, and ended together.

Nothing listens beyond this machine: the processes find each other through a file in a private folder, and connect
over the loopback interface. Each sends its events, its error and a heartbeat every second as JSON lines through a
pipe; one that sends nothing for `[launch].timeout` seconds was stopped or hangs, and ends the run. Each process ends
when this one ends, however that happens: it watches a second pipe that this process holds open.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import Interrupted, RunStopped
from taskrecipe.run.error_reports import ErrorReport, is_cause, make_error
from taskrecipe.run.interfaces import LOOPBACK
from taskrecipe.run.launchers import FOLDER, process_defaults
from taskrecipe.run.request import Request
from taskrecipe.run.signals import Signals

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Launch
    from taskrecipe.training.events import Event

REPORT_SECONDS = 10.0
"""How long the other processes may take to end by themselves once one has failed."""

EXIT_SECONDS = 60.0
"""How long a process that is done may take to exit."""

REQUEST, STORE = "request.json", "store"
"""The files in the private folder: what to do, and where the processes find each other."""

EVENTS, LIFELINE = "TASKRECIPE_EVENTS", "TASKRECIPE_LIFELINE"
"""Environment variables of a worker: the file descriptors of its two pipes."""


def launch_request(request: Request, launch: Launch) -> Iterator[Event]:
    """Execute a request in several processes, and yield the events of the main one."""
    with TemporaryDirectory(prefix="taskrecipe-") as private, Signals() as signals:
        folder = Path(private)
        (folder / REQUEST).write_text(request.to_json())
        group = ProcessGroup(float(launch.timeout))
        try:
            group.start(launch.processes, folder)
            signals.control = group
            yield from group.watch()
        finally:
            group.kill()
    group.raise_failure()


@dataclass
class Worker:
    """One of the processes, and what it has sent."""

    rank: int
    process: subprocess.Popen[bytes]
    events: int
    """The reading end of its pipe."""
    buffer: bytes = b""
    last_heartbeat: float = field(default_factory=time.monotonic)
    """When it last sent anything."""
    error: ErrorReport | None = None
    ended_here: bool = False
    """Whether this process has killed it."""


@dataclass
class ProcessGroup:
    """The processes of one run."""

    timeout: float
    """Seconds without a heartbeat after which a process counts as hanging."""
    workers: list[Worker] = field(default_factory=list)
    interrupted: int | None = None
    silent: Worker | None = None
    """The process that sent nothing for too long."""
    _has_started: bool = False
    _lifeline: int | None = None

    def start(self, processes: int, folder: Path) -> None:
        """Start the processes."""
        watched, self._lifeline = os.pipe()
        for rank in range(processes):
            reading, writing = os.pipe()
            environment = _worker_environment(rank, processes, folder, writing, watched)
            command = [sys.executable, "-m", "taskrecipe.run.worker"]
            process = subprocess.Popen(  # in sessions of their own: a Ctrl-C goes to this process, which passes it on
                command,
                env=environment,
                pass_fds=(writing, watched),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.close(writing)
            self.workers.append(Worker(rank, process, reading))
        os.close(watched)

    def watch(self) -> Iterator[Event]:
        """Yield the main process's events until all processes have ended, or one has failed."""
        from taskrecipe.training.events import read_event

        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker.events, selectors.EVENT_READ, worker)
            deadline: float | None = None
            while selector.get_map() and (deadline is None or time.monotonic() < deadline):
                ready = selector.select(timeout=0.5)
                # Before events are passed on: who receives them may take its time, and then all seem to be silent.
                if self._find_silent(selector, {key.data.rank for key, _ in ready}):
                    break
                for key, _ in ready:
                    for message in self._read(key.data, selector):
                        if "event" in message and key.data.rank == 0:
                            self._has_started = True
                            yield read_event(message["event"])
                failed = any(worker.process.poll() for worker in self.workers)
                if failed and deadline is None and self.interrupted is None:
                    deadline = time.monotonic() + REPORT_SECONDS
        for worker in self.workers:  # an interpreter takes a while to end after it has closed its pipe
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(0.0 if deadline or self.silent else EXIT_SECONDS)

    def _find_silent(self, selector: selectors.BaseSelector, ready: set[int]) -> bool:
        """Find a process that has sent nothing for too long, once the run has started: imports may block it before."""
        open_pipes = {key.data.rank for key in selector.get_map().values()}
        latest = time.monotonic() - self.timeout
        silent = [w for w in self.workers if w.rank in open_pipes - ready and w.last_heartbeat < latest]
        if silent and self._has_started:
            self.silent = min(silent, key=lambda worker: worker.last_heartbeat)
        return self.silent is not None

    def interrupt(self, signum: int, reason: str) -> bool:
        """Pass a signal on to every process, so that they save and end. A second signal kills them at once."""
        first, self.interrupted = self.interrupted is None, signum
        for worker in self.workers:
            with suppress(ProcessLookupError, PermissionError):
                if first:
                    worker.process.send_signal(signum)
                else:
                    os.killpg(worker.process.pid, signal.SIGKILL)
        return True

    def kill(self) -> None:
        """End every process that is still there, and what it has started."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.ended_here = True
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def raise_failure(self) -> None:
        """Raise the error that ended the run, if one did. Only the first one counts; the others follow from it."""
        reported = [worker.error for worker in self.workers if worker.error]
        if self.silent:
            raise _hanging_error(self.silent, len(self.workers), f"sent no heartbeat for {self.timeout:g} seconds")
        if self.interrupted and not reported:
            raise Interrupted(self.interrupted)
        killed = [worker for worker in self.workers if _was_killed(worker)]
        if killed and not any(is_cause(error) for error in reported):
            raise _killed_error(killed[0], len(self.workers))
        waited_for = [worker for worker in self.workers if worker.ended_here and worker.error is None]
        if waited_for and reported and not any(is_cause(error) for error in reported):
            reason = "did not respond, and the others waited for it in vain"
            raise _hanging_error(waited_for[0], len(self.workers), reason)
        if reported:
            raise make_error(min(reported, key=lambda error: error["time"]))
        codes = [worker.process.returncode for worker in self.workers if worker.process.returncode]
        if codes:
            raise RunStopped(f"a process ended with exit code {codes[0]} and no message")

    def _read(self, worker: Worker, selector: selectors.BaseSelector) -> Iterator[dict[str, Any]]:
        content = os.read(worker.events, 2**16)
        if not content:
            selector.unregister(worker.events)
            os.close(worker.events)
            return
        worker.last_heartbeat = time.monotonic()
        *lines, worker.buffer = (worker.buffer + content).split(b"\n")
        for line in lines:
            message = json.loads(line)
            worker.error = message.get("error") or worker.error
            yield message


def _worker_environment(rank: int, processes: int, folder: Path, events: int, lifeline: int) -> dict[str, str]:
    defaults = {
        **process_defaults(processes),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        FOLDER: str(folder),
        EVENTS: str(events),
        LIFELINE: str(lifeline),
    }
    return {**defaults, **os.environ, **own}


def _was_killed(worker: Worker) -> bool:
    code = worker.process.returncode
    return code is not None and code < 0 and worker.error is None and not worker.ended_here


def _killed_error(worker: Worker, processes: int) -> RunStopped:
    name = signal.Signals(-worker.process.returncode).name
    return RunStopped(
        f"process {worker.rank + 1} of {processes} was ended by {name}, and the others with it. If it ran out of "
        "memory, increase [train].accumulate. Checkpoints are intact: continue with `recipe resume`"
    )


def _hanging_error(worker: Worker, processes: int, reason: str) -> RunStopped:
    return RunStopped(
        f"process {worker.rank + 1} of {processes} (process id {worker.process.pid}) {reason}. All processes were "
        "ended. Checkpoints are intact: continue with `recipe resume`. [launch].timeout sets how long to wait"
    )
