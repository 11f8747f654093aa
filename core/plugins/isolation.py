"""Run code of plugins in forked processes: a plugin that hangs or ends its process hurts nothing else.

A thread could not be stopped, and a plugin may call `os._exit`. A fork starts in milliseconds with everything imported.
One process does all tasks in turn. While it is slow, another one goes on with tasks of other groups, so that several
plugins that hang are waited for at the same time.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

LIMIT = 10.0
"""Seconds after which a plugin is taken to hang: importing torch may take half of that."""
SLOW = 0.3
MOST_PROCESSES = 16

Task = TypeVar("Task")
Answer = dict[str, Any]

_answers_to: int | None = None
"""In a forked process: where answers are written."""


@dataclass(frozen=True)
class Failure:
    """Why a task has no result."""

    reason: str
    plugin: str = ""
    """The description of the plugin that was loaded last."""


def announce_plugin(description: str) -> None:
    """Say that a plugin is about to be imported, so that it can be named if that never ends."""
    if _answers_to is not None:
        _send(_answers_to, {"plugin": description})


def run_isolated(
    tasks: Sequence[Task], work: Callable[[Task], Any], group: Callable[[Task], Hashable] = id
) -> list[Any | Failure]:
    """Return `work(task)` of each task, computed in other processes, or why it failed. Results must be JSON values.

    If one task of a group hangs, so would the others: they fail without being tried.
    """
    if not tasks:
        return []
    return _Pool(tasks, work, [group(task) for task in tasks]).run()


@dataclass
class _Process:
    pid: int
    pipe: int
    todo: list[int]
    """The tasks whose results are awaited from this process; it works on the first."""
    plugin: str = ""
    buffer: bytes = b""
    since: float = field(default_factory=time.monotonic)


class _Pool:
    def __init__(self, tasks: Sequence[Any], work: Callable[[Any], Any], groups: list[Hashable]) -> None:
        self.tasks, self.work, self.groups = tasks, work, groups
        self.results: dict[int, Any] = {}
        self.processes: list[_Process] = []

    def run(self) -> list[Any]:
        first = {group: n for n, group in reversed(list(enumerate(self.groups)))}
        self._start(sorted(range(len(self.tasks)), key=lambda n: first[self.groups[n]]))
        try:
            while self.processes:
                pipes = [process.pipe for process in self.processes]
                ready, _, _ = select.select(pipes, [], [], 0.05)
                for process in list(self.processes):
                    self._attend(process, process.pipe in ready)
        finally:
            for process in list(self.processes):
                self._end(process)
        return [self.results[n] for n in range(len(self.tasks))]

    def _start(self, todo: list[int]) -> None:
        if not todo:
            return
        sys.stdout.flush()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._work_and_exit(todo, writer)
        os.close(writer)
        self.processes.append(_Process(pid, reader, todo))

    def _work_and_exit(self, todo: list[int], writer: int) -> NoReturn:
        """Do the tasks in the forked process. Whatever a plugin raises is an answer; what it prints is dropped."""
        global _answers_to
        with suppress(BaseException):
            os.setpgid(0, 0)
            _answers_to = writer
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, 0)
            os.dup2(nowhere, 1)
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            for n in todo:
                _send(writer, self._answer(n))
        os._exit(0)

    def _answer(self, task: int) -> Answer:
        try:
            return {"task": task, "value": self.work(self.tasks[task])}
        except BaseException as error:
            return {"task": task, "error": f"failed: {type(error).__name__}: {error}"}

    def _attend(self, process: _Process, is_ready: bool) -> None:
        """Take the answers of a process, and end it if it is done, has ended itself, or hangs."""
        content = os.read(process.pipe, 1 << 16) if is_ready else b""
        self._take(process, content)
        waited = time.monotonic() - process.since
        if not process.todo:
            self._end(process)
        elif is_ready and not content:
            self._fail(process, _describe_exit(self._end(process)), [process.todo[0]])
        elif waited > LIMIT:
            self._end(process)
            hung = self.groups[process.todo[0]]
            reason = f"did not finish within {LIMIT:g} seconds"
            self._fail(process, reason, [n for n in process.todo if self.groups[n] == hung])
        elif waited > SLOW and len(self.processes) < MOST_PROCESSES:
            self._relieve(process)

    def _take(self, process: _Process, content: bytes) -> None:
        import json

        *lines, process.buffer = (process.buffer + content).split(b"\n")
        for answer in map(json.loads, lines):
            process.plugin = answer.get("plugin", process.plugin)
            if "task" in answer and answer["task"] in process.todo:
                process.since = time.monotonic()
                process.todo.remove(answer["task"])
                failed = "error" in answer
                self.results[answer["task"]] = Failure(answer["error"], process.plugin) if failed else answer["value"]

    def _fail(self, process: _Process, reason: str, failed: list[int]) -> None:
        for task in failed:
            self.results[task] = Failure(reason, process.plugin)
        self._start([task for task in process.todo if task not in failed])

    def _relieve(self, process: _Process) -> None:
        """Let another process do the tasks of other groups."""
        slow = self.groups[process.todo[0]]
        others = [task for task in process.todo if self.groups[task] != slow]
        process.todo = [task for task in process.todo if self.groups[task] == slow]
        self._start(others)

    def _end(self, process: _Process) -> int:
        """End a process and those it has started. Return its wait status."""
        self.processes.remove(process)
        os.close(process.pipe)
        done, status = os.waitpid(process.pid, os.WNOHANG)
        for kill in () if done else (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(process.pid, signal.SIGKILL)
        return status if done else os.waitpid(process.pid, 0)[1]


def _describe_exit(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"ended its process with exit code {code}" if code >= 0 else f"ended its process by signal {-code}"


def _send(pipe: int, answer: Answer) -> None:
    import json  # not above: checking a spec of our own recipes needs no process, and should start fast

    content = json.dumps(answer).encode() + b"\n"
    while content:
        content = content[os.write(pipe, content) :]
