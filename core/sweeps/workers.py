"""The processes that train the runs of a sweep on this machine, and the accelerators that they are given."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from taskrecipe import errors
from taskrecipe.errors import RecipeError, RunStopped
from taskrecipe.sweeps.jobs import Order

START_SECONDS = 600.0
"""How long the warm process may take to import everything, and a run's process to take its lock."""

MOST_LOSSES = 3
"""How often the warm process may die. If it dies more often, this machine or a plugin is at fault."""

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class Worker:
    """A process that trains a run."""

    name: str
    pid: int
    devices: tuple[str, ...] = ()


@dataclass
class Workers:
    """The warm process, and the processes that it has forked."""

    log: Path
    """The file that takes what the warm process prints."""
    parallel: int
    processes: int
    """Processes of each run."""
    on_cpu: bool = False
    running: dict[str, Worker] = field(default_factory=dict)
    deaths: dict[str, list[int]] = field(default_factory=dict)
    """Of runs whose process has ended without a record: the last update before each end."""

    def __post_init__(self) -> None:
        self._warm: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._ended_early: dict[str, int] = {}
        self._losses = 0
        self._unwatched: set[str] = set()
        """Runs whose warm process was killed: they train on, and nobody reports their end."""
        self._buffer = b""
        self.devices = [] if self.on_cpu else find_devices()

    @property
    def slots(self) -> int:
        """How many runs may train here at a time. Each has accelerators of its own, where there are any."""
        return min(self.parallel, max(1, len(self.devices) // self.processes)) if self.devices else self.parallel

    def is_ready(self) -> bool:
        """Whether runs can be started now. The first call begins to import what they need, and does not wait."""
        self._open()
        self._pending = self._read(0.0)
        return self._is_ready

    def wait_until_ready(self) -> None:
        """Wait until runs can be started."""
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise RunStopped(f"what runs need could not be imported within {START_SECONDS:g} seconds")
            time.sleep(0.02)

    def start(self, order: Order) -> None:
        """Start the process of a run, and wait until it has its lock, or finds that another process has it."""
        devices = self._deal_devices()
        environment = {VISIBLE: ",".join(devices)} if devices else {}
        self._write(Order(**{**vars(order), "environment": environment}).to_json())
        answer = self._wait_for("claimed", "busy", "ended")
        if "claimed" in answer:
            self.running[order.name] = Worker(order.name, int(answer["pid"]), devices)
        elif "ended" in answer:
            self._ended_early[order.name] = int(answer["code"])

    def find_sample_reason(self, base: Path, sample: bool) -> str | None:
        """Return why runs use sample data; None if they use the spec's own. Raise if neither can be had."""
        self.wait_until_ready()
        self._write(json.dumps({"probe": str(base), "sample": sample}))
        answer: dict[str, Any] = self._wait_for("sample").get("sample", {"error": _lost_message(None), "code": 4})
        if "error" in answer:
            error: RecipeError = getattr(errors, answer.get("kind", ""), RecipeError).__new__(RecipeError)
            Exception.__init__(error, answer["error"])
            error.exit_code = int(answer["code"])
            raise error
        reason = answer["reason"]
        return None if reason is None else str(reason)

    def wait(self, seconds: float) -> None:
        """Wait for news from the warm process, such as the end of a run; at most so many seconds."""
        if self._warm is None:
            time.sleep(seconds)
        else:
            self._pending = self._read(seconds)

    def collect_ended(self) -> dict[str, int]:
        """Return the runs whose processes have ended, each with its exit code."""
        ended, self._ended_early = self._ended_early, {}
        for message in self._read(0.0):
            if "ended" in message and self.running.pop(message["ended"], None) is not None:
                ended[message["ended"]] = int(message["code"])
        for name in [name for name in self._unwatched if not _is_alive(self.running[name].pid)]:
            self._unwatched.remove(name)
            del self.running[name]
            ended[name] = 0
        return ended

    def signal_all(self, signum: int) -> None:
        """Send a signal to the process of every run."""
        for worker in self.running.values():
            send_signal(worker.pid, signum)

    def close(self) -> None:
        """End the warm process. Runs that still train go on."""
        if self._warm is not None:
            for pipe in (self._warm.stdin, self._warm.stdout):
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            with suppress(subprocess.TimeoutExpired):
                self._warm.wait(5.0)
            self._warm.kill()
            self._warm.wait()
            self._warm, self._is_ready = None, False

    def _deal_devices(self) -> tuple[str, ...]:
        used = {device for worker in self.running.values() for device in worker.devices}
        return tuple([device for device in self.devices if device not in used][: self.processes])

    # The warm process -------------------------------------------------------------------------------

    def _open(self) -> subprocess.Popen[bytes]:
        """Return the warm process. It is in a session of its own: a Ctrl-C goes to the sweeper, which passes it on."""
        if self._warm is None:
            threads = max(1, (os.cpu_count() or 1) // (self.parallel * self.processes))
            with self.log.open("ab") as log:
                self._warm = subprocess.Popen(
                    [sys.executable, "-m", "taskrecipe.sweeps.warm_process"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={"OMP_NUM_THREADS": str(threads), **os.environ},
                    start_new_session=True,
                )
        return self._warm

    def _lose_warm(self) -> None:
        """Note that the warm process is gone. A new one is started when it is needed."""
        self._losses += 1
        if self._losses > MOST_LOSSES or self._warm is None:
            raise RunStopped(_lost_message(self._warm))
        self._warm.kill()
        self._warm.wait()
        self._warm, self._is_ready, self._buffer = None, False, b""
        self._unwatched |= self.running.keys()

    def _write(self, line: str) -> None:
        pipe = self._open().stdin
        if pipe is None:
            raise RunStopped("the process that starts runs has no input")
        with suppress(OSError):  # if it is gone, reading its answer says so
            pipe.write(line.encode() + b"\n")
            pipe.flush()

    def _wait_for(self, *kinds: str) -> dict[str, Any]:
        """Return the first message of these kinds that is not about a run which trains already; keep the others."""
        deadline = time.monotonic() + START_SECONDS
        kept: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            messages = self._read(0.5)
            for number, message in enumerate(messages):
                is_wanted = any(kind in message for kind in (*kinds, "lost"))
                if is_wanted and message.get("ended") not in self.running:
                    self._pending = [*kept, *messages[number + 1 :]]
                    return message
                kept.append(message)
        raise RunStopped(f"no process of a run has started within {START_SECONDS:g} seconds")

    _pending: list[dict[str, Any]] = field(default_factory=list)
    """Messages that came while another was waited for."""

    def _read(self, seconds: float) -> list[dict[str, Any]]:
        pending, self._pending = self._pending, []
        pipe = self._warm.stdout if self._warm is not None else None
        if pipe is None:
            return pending
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            if selector.select(0.0 if pending else seconds):
                content = os.read(pipe.fileno(), 2**16)
                if not content:
                    self._lose_warm()
                    return [*pending, {"lost": True}]
                *lines, self._buffer = (self._buffer + content).split(b"\n")
                pending += [message for line in lines if (message := _parse(line)) is not None]
                self._is_ready |= any("ready" in message for message in pending)
        return pending


def find_devices() -> list[str]:
    """Return the CUDA devices that may be used, without loading torch: those that are visible, or all."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    with suppress(OSError, subprocess.SubprocessError):
        command = [program, "--query-gpu=index", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return [line.strip() for line in listed.stdout.splitlines() if line.strip().isdigit()]
    return []


def send_signal(pid: int, signum: int) -> None:
    """Send a signal to a run's process; to kill it, to all that it has started too."""
    with suppress(ProcessLookupError, PermissionError):
        if signum == signal.SIGKILL:
            os.killpg(pid, signum)  # it leads a session of its own
        else:
            os.kill(pid, signum)


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _parse(line: bytes) -> dict[str, Any] | None:
    """Read an answer. A library that prints while it is imported is not one."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _lost_message(process: subprocess.Popen[bytes] | None) -> str:
    code = f" (exit code {process.poll()})" if process is not None else ""
    return f"the process that starts runs has ended{code}. Runs train on; start the sweep again to follow them"
