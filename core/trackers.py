"""Trackers, through Accelerate's: they are told what happens from a thread of their own, and can hurt nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Full, Queue
from typing import Any

from pydantic import Field

from taskrecipe.core import redaction
from taskrecipe.core.extras import require
from taskrecipe.core.plugins import Listener, Tracker
from taskrecipe.core.spec import secrets
from taskrecipe.core.spec.table import Text
from taskrecipe.core.training.control import Control
from taskrecipe.core.training.events import End, Evaluated, Event, Start, Updated

EXTRAS = frozenset({"tensorboard", "wandb", "mlflow", "trackio"})
QUEUE_LENGTH = 1000

Scalar = bool | int | float | str
Task = Callable[[Any], object]


class AccelerateTracker(Tracker):
    """A tracker that Accelerate knows, by its name there."""

    project: Text | None = Field(default=None, description="What runs are filed under; by default the run's name.")
    options: dict[Text, Scalar] = Field(
        default={}, description="The tracker's own options. Keys and tokens belong in the environment, not here."
    )

    def require(self) -> None:
        """Say what to install if the tracker's package, which has its name, is missing."""
        kind = self._kind
        install = f"taskrecipe[{kind}]" if kind in EXTRAS else kind
        require(kind, install=install, wanted_by=f"tracker {self.name!r}")

    def build(self, run_name: str, folder: str) -> Any:
        """Make Accelerate's tracker; nothing is sent before it is started."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        Path(folder).mkdir(parents=True, exist_ok=True)
        kind = LOGGER_TYPE_TO_CLASS[self._kind]
        places = [folder] if kind.requires_logging_directory else []
        options = _names_of(run_name, folder).get(self._kind, {}) | self.options
        return kind(self.project or run_name, *places, **options)

    @property
    def _kind(self) -> str:
        return self.name.rpartition(":")[2]  # the full form of a name has its distribution before a colon


def _names_of(run_name: str, folder: str) -> dict[str, dict[str, Scalar]]:
    """What trackers call a run's name and folder, where Accelerate gives them neither."""
    return {
        "wandb": {"name": run_name, "dir": folder},
        "trackio": {"name": run_name},
        "mlflow": {"run_name": run_name},
        "clearml": {"task_name": run_name},
        "dvclive": {"dir": folder},
        "swanlab": {"experiment_name": run_name, "logdir": folder},
    }


class Tracking(Listener):
    """Sends a run's numbers to a tracker, from one background thread.

    The run never waits for it but at the end, and then no longer than `patience` seconds. What fails is counted,
    and told by `warn`, always on the thread of the run.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], Any],
        config: Mapping[str, Any],
        warn: Callable[[str], None],
        patience: float = 20.0,
    ) -> None:
        self._name, self._build, self._warn, self._patience = name, build, warn, patience
        self._config = flattened(config)
        self._tasks: Queue[Task | None] = Queue(QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._asked = self._sent = self._errors = 0
        self._first_error: str | None = None
        self._told = self._closed = False

    def hear(self, event: Event, control: Control) -> None:
        """Pass on what the tracker should show; this never waits and never fails, but at the end."""
        self._tell_first_error()
        if isinstance(event, Start):
            self._thread.start()
            self._send(lambda tracker: tracker.store_init_configuration(self._config))
        elif isinstance(event, Evaluated) or (isinstance(event, Updated) and event.logged):
            numbers = numbers_of(event)
            self._send(lambda tracker: tracker.log(numbers, step=event.step))
        elif isinstance(event, End):
            self.close()

    def close(self) -> None:
        """Let the tracker finish, wait for it no longer than patience lasts, and tell what was lost."""
        if self._closed or self._thread.ident is None:
            return
        self._closed = True
        deadline = time.monotonic() + self._patience
        with suppress(Full):
            self._tasks.put(None, timeout=self._patience)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._tell_first_error()
        self._tell_losses()

    @property
    def hung(self) -> bool:
        """Whether the tracker was given up at the end; its threads may then keep the interpreter from exiting."""
        return self._closed and self._thread.is_alive()

    def _send(self, task: Task) -> None:
        self._asked += 1
        with suppress(Full):  # a tracker that hangs; what it misses is told at the end
            self._tasks.put_nowait(task)

    # On the tracker's thread ------------------------------------------------------------------------

    def _work(self) -> None:
        tracker = self._started()
        while (task := self._tasks.get()) is not None:
            if tracker is not None:
                self._sent += self._succeeds(partial(task, tracker))
        if tracker is not None:
            self._succeeds(lambda: tracker.finish())

    def _started(self) -> Any:
        trackers: list[Any] = []
        built = self._succeeds(lambda: trackers.append(self._build()))
        return trackers[0] if built and self._succeeds(lambda: trackers[0].start()) else None

    def _succeeds(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except BaseException as error:  # a tracker that calls sys.exit() must not end the thread unnoticed either
            self._errors += 1
            self._first_error = self._first_error or f"{type(error).__name__}: {error}"
            return False
        return True

    # On the run's thread ----------------------------------------------------------------------------

    def _tell_first_error(self) -> None:
        if self._first_error and not self._told:
            self._told = True
            self._warn(_safe(f"tracker {self._name!r} failed, training goes on: {self._first_error}"))

    def _tell_losses(self) -> None:
        lost = f"{self._asked - self._sent} of {self._asked} records were not sent"
        if self.hung:
            self._warn(f"tracker {self._name!r} did not finish in {self._patience:g} s and was given up: {lost}")
        elif self._errors or self._asked > self._sent:
            self._warn(f"tracker {self._name!r}: {lost}, {self._errors} calls failed")


def numbers_of(event: Updated | Evaluated) -> dict[str, float]:
    """What a tracker shows of an event, under names such as train/loss and eval/f1."""
    if isinstance(event, Evaluated):
        return {f"eval/{name}": value for name, value in event.metrics.items()}
    record = event.record()
    terms = {f"loss_{name}": value for name, value in record.pop("terms", {}).items()}
    return {f"train/{name}": value for name, value in {**record, **terms}.items() if name not in ("event", "step")}


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Nested tables as one, with dotted keys, holding what every tracker can store, and no secret."""
    flat: dict[str, Scalar] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{key}.")
        elif value is not None:
            flat[key] = value if isinstance(value, (bool, int, float)) else _safe_value(key, value)
    return flat


def _safe_value(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return _safe(f"{key} = {text}").partition(" = ")[2]  # a secret may be known by its key alone


def _safe(text: str) -> str:
    """Leave out what the environment keeps secret, and what merely looks like a secret: this leaves the machine."""
    return secrets.redact(redaction.redact(text))
