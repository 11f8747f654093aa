"""`python -m taskrecipe.sweeps.warm_process`: imports what runs need once, and forks a process for each run.

Each run has a process of its own, which ends with it: nothing of one run reaches the next. This process computes
nothing, so that no thread and no state of torch is there when it forks.

What the first run had to import is imported here while it trains, so that the next ones start with it.

It reads orders from standard input, one a line, and answers with lines of JSON: `claimed` or `busy` when a run's
process has its lock or finds that another has it, `ended` with its exit code. When its input ends, this process ends;
the runs go on.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from taskrecipe.errors import DiskFullError, Interrupted, RecipeError, UsageError
from taskrecipe.run.folder_names import SPEC
from taskrecipe.run.train import run_request_events
from taskrecipe.sweeps.folder import BASE, MODULES, SWEEPER, SweepFolder, file_state
from taskrecipe.sweeps.jobs import Order
from taskrecipe.system import atomic_files
from taskrecipe.system.tracebacks import describe_unexpected, keep_traceback

IDLE = 0.5
"""Seconds without an order or an end of a run after which the next run is prepared for."""


def main() -> None:
    """Serve orders until the input ends."""
    import taskrecipe.run.training_run  # noqa: F401 - with torch and all that a run needs

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweeper decides what a Ctrl-C means
    Server().serve()


class Server:
    """Forks processes, and reports when they have ended."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.folder: SweepFolder | None = None
        self.modules_from: tuple[int, int, int] | None = None
        """The state of the file of modules that was read last."""
        self.buffer = b""

    def serve(self) -> None:
        """Read orders and start their processes."""
        ended = _wake_when_a_child_ends()
        _send({"ready": True})
        while True:
            ready, _, _ = select.select([0, ended], [], [], IDLE if self.names else None)
            if not ready:
                self._prepare_next()
            if ended in ready:
                os.read(ended, 2**16)
            if 0 in ready:
                content = os.read(0, 2**16)
                if not content:
                    return
                *lines, self.buffer = (self.buffer + content).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            self._report_ended()

    def _obey(self, message: dict[str, Any]) -> None:
        if "probe" in message:
            _send({"sample": _find_sample_reason(message["probe"], message["sample"])})
            return
        order = Order.from_json(message)
        self.folder = SweepFolder(Path(order.sweep))
        self._import_modules(self.folder)
        gc.collect()
        gc.freeze()  # what is here stays: a collection in a fork would copy its memory
        pid = os.fork()
        if pid == 0:
            _become(order)
        self.names[pid] = order.name

    def _report_ended(self) -> None:
        for pid in list(self.names):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                _send({"ended": self.names.pop(pid), "code": os.waitstatus_to_exitcode(status)})

    def _prepare_next(self) -> None:
        """While runs train, import and compile here what every later run would import and compile by itself."""
        if self.folder is not None and self._import_modules(self.folder):
            with suppress(Exception):  # if it fails, the run that needs it says why
                _compile_once(self.folder.base)

    def _import_modules(self, folder: SweepFolder) -> bool:
        """Import what the first runs had to import by themselves; return whether there was something new."""
        path = folder.state / MODULES
        state = file_state(path)
        if state is None or state == self.modules_from:
            return False
        self.modules_from = state
        found = folder.read_json(str(path.relative_to(folder.path))) or {}
        for name in found.get("modules", []):
            if name not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(name)
        return True


def _compile_once(base: Path) -> None:
    """Build pydantic's validators of the spec, the report's templates, and transformers' patterns of weight names."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from taskrecipe.report.page import compile_templates
    from taskrecipe.spec.resolve import resolve

    resolve(base)
    compile_templates()
    get_checkpoint_conversion_mapping("")  # type: ignore[no-untyped-call]


def _wake_when_a_child_ends() -> int:
    """Return a descriptor that can be read whenever a process of a run has ended, so that nothing has to be polled."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # the signal writes to the pipe only if Python handles it
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _find_sample_reason(path: str, sample: bool) -> dict[str, Any]:
    """Say whether a spec's data and model can be had, in a process of its own: the hub's libraries start threads."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = _ask_hub(path, sample)
        except RecipeError as error:
            answer = {"kind": type(error).__name__, "error": str(error), "code": error.exit_code}
        except BaseException as error:
            answer = {"kind": type(error).__name__, "error": f"{type(error).__name__}: {error}", "code": 1}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read() or b'{"error": "the process that looked for the data was killed", "code": 1}'
    os.waitpid(pid, 0)
    return dict(json.loads(found))


def _ask_hub(path: str, sample: bool) -> dict[str, Any]:
    from taskrecipe.run.sample_fallback import reason_for_sample
    from taskrecipe.spec.resolve import resolve

    return {"reason": reason_for_sample(resolve(Path(path), sample=sample).spec)}


# The process of one run -----------------------------------------------------------------------------


def _become(order: Order) -> None:
    """Turn this fork into the run's process."""
    code = 1
    try:
        answers = os.dup(1)
        folder = SweepFolder(Path(order.sweep))
        _detach(folder.output(order.name))
        try:
            lock = folder.claim(order.name)
            lock.acquire()
        except UsageError:
            _send({"busy": order.name}, answers)
            os._exit(0)
        (folder.state / order.name / SWEEPER).write_text(order.sweeper)
        _send({"claimed": order.name, "pid": os.getpid()}, answers)
        os.close(answers)
        os.environ.update(order.environment)
        code = _train(order, folder)
        lock.release()
    finally:
        os._exit(code)


def _detach(output: Path) -> None:
    """Leave the terminal and the pipes of the sweeper, which may end before the run does."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output.parent.mkdir(exist_ok=True)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115, PTH123


def _train(order: Order, folder: SweepFolder) -> int:
    """Train, and record why if it fails. A run that was interrupted has not failed."""
    from taskrecipe.training.events import End, Updated

    run, known = folder.run(order.name), len(sys.modules)
    request = order.request(str(folder.path / BASE), str(run), (run / SPEC).exists())
    try:
        for event in run_request_events(request):
            if isinstance(event, Updated | End):
                known = _keep_modules(folder, known)
        _keep_modules(folder, known)
    except Interrupted as error:
        return error.exit_code
    except RecipeError as error:
        print(error, file=sys.stderr, flush=True)
        folder.record_failure(order.name, _describe(error, str(error), error.exit_code))
        return error.exit_code
    except BaseException as error:
        message = describe_unexpected(error, keep_traceback(error, folder.state / order.name))
        print(message, file=sys.stderr, flush=True)
        folder.record_failure(order.name, _describe(error, message, 1))
        return 1
    return 0


def _describe(error: BaseException, message: str, code: int) -> dict[str, Any]:
    kind = "DiskFullError" if isinstance(error, DiskFullError) else type(error).__name__
    return {"kind": kind, "message": message, "code": code}


def _keep_modules(folder: SweepFolder, known: int) -> int:
    """Keep the names of what was imported if it is more than `known` modules; return how many there are now."""
    if len(sys.modules) > known:
        path = folder.state / MODULES
        kept = (folder.read_json(str(path.relative_to(folder.path))) or {}).get("modules", [])
        ours = [name for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None) is not None]
        if set(ours) - set(kept):
            with suppress(OSError, FileExistsError):  # another run writes it at the same moment
                atomic_files.replace(path, json.dumps({"modules": sorted({*kept, *ours})}).encode())
    return len(sys.modules)


def _send(message: dict[str, Any], descriptor: int = 1) -> None:
    """Send a line. It is short, so that lines of several processes don't mix in the pipe."""
    with suppress(OSError):  # the sweeper is gone
        os.write(descriptor, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
