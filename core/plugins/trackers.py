"""Trackers of Accelerate. They run in a background thread, so that their errors and delays don't affect the run."""

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
from typing_extensions import override

from taskrecipe.plugins.kinds import Listener, Tracker
from taskrecipe.spec.table import Text
from taskrecipe.system.optional_packages import require_package
from taskrecipe.system.secrets import redact
from taskrecipe.training.control import Control
from taskrecipe.training.events import End, Evaluated, Event, FinalEvaluated, Start, Updated

EXTRAS = frozenset({"tensorboard", "wandb", "mlflow", "trackio"})
QUEUE_LENGTH = 1000

Scalar = bool | int | float | str
Task = Callable[[Any], object]


class AccelerateTracker(Tracker):
    """A tracker that Accelerate supports, by its name there."""

    project: Text | None = Field(default=None, description="The run's project; by default the run's name.")
    options: dict[Text, Scalar] = Field(
        default={}, description="The tracker's own options. Keys and tokens belong in the environment, not here."
    )

    @override
    def require(self) -> None:
        kind = self._kind
        install = f"taskrecipe[{kind}]" if kind in EXTRAS else kind
        require_package(kind, install=install, wanted_by=f"tracker {self.name!r}")

    @override
    def build(self, run_name: str, folder: str) -> Any:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        Path(folder).mkdir(parents=True, exist_ok=True)
        kind = LOGGER_TYPE_TO_CLASS[self._kind]
        places = [folder] if kind.requires_logging_directory else []
        options = _name_options(run_name, folder).get(self._kind, {}) | self.options
        return kind(self.project or run_name, *places, **options)

    @property
    def _kind(self) -> str:
        return self.name.rpartition(":")[2]  # a full name is `distribution:name`


def _name_options(run_name: str, folder: str) -> dict[str, dict[str, Scalar]]:
    """Return the options for a run's name and folder, for trackers that don't get them from Accelerate."""
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

    The run waits for it only at the end, for at most `patience` seconds. Errors are counted and passed to `warn`, which
    is always called in the thread of the run.
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
        self._config = flatten_tables(config)
        self._tasks: Queue[Task | None] = Queue(QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._asked = self._sent = self._errors = 0
        self._first_error: str | None = None
        self._warned = self._closed = False

    @override
    def on_event(self, event: Event, control: Control) -> None:
        """Queue what the tracker should show. It never raises, and waits only at the end."""
        self._warn_of_first_error()
        if isinstance(event, Start):
            self._thread.start()
            self._send(lambda tracker: tracker.store_init_configuration(self._config))
        elif isinstance(event, Evaluated | FinalEvaluated) or (isinstance(event, Updated) and event.logged):
            numbers = read_event_numbers(event)
            self._send(lambda tracker: tracker.log(numbers, step=event.step))
        elif isinstance(event, End):
            self.close()

    @override
    def close(self) -> None:
        """Wait for the tracker to finish, at most `patience` seconds, and warn of records that were not sent."""
        if self._closed or self._thread.ident is None:
            return
        self._closed = True
        deadline = time.monotonic() + self._patience
        with suppress(Full):
            self._tasks.put(None, timeout=self._patience)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._warn_of_first_error()
        self._warn_of_losses()

    @property
    def hung(self) -> bool:
        """Whether the tracker did not finish in time. Its threads may then keep the interpreter from exiting."""
        return self._closed and self._thread.is_alive()

    def _send(self, task: Task) -> None:
        self._asked += 1
        with suppress(Full):  # the tracker hangs; `close` reports what was not sent
            self._tasks.put_nowait(task)

    # In the tracker's thread ------------------------------------------------------------------------

    def _work(self) -> None:
        tracker = self._start_tracker()
        while (task := self._tasks.get()) is not None:
            if tracker is not None:
                self._sent += self._try_call(partial(task, tracker))
        if tracker is not None:
            self._try_call(lambda: tracker.finish())

    def _start_tracker(self) -> Any:
        trackers: list[Any] = []
        built = self._try_call(lambda: trackers.append(self._build()))
        return trackers[0] if built and self._try_call(lambda: trackers[0].start()) else None

    def _try_call(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except BaseException as error:  # sys.exit() in a tracker must be reported too
            self._errors += 1
            self._first_error = self._first_error or f"{type(error).__name__}: {error}"
            return False
        return True

    # In the run's thread ----------------------------------------------------------------------------

    def _warn_of_first_error(self) -> None:
        if self._first_error and not self._warned:
            self._warned = True
            self._warn(redact(f"tracker {self._name!r} failed; training continues: {self._first_error}"))

    def _warn_of_losses(self) -> None:
        lost = f"{self._asked - self._sent} of {self._asked} records were not sent"
        if self.hung:
            self._warn(f"tracker {self._name!r} did not finish in {self._patience:g} s: {lost}")
        elif self._errors or self._asked > self._sent:
            self._warn(f"tracker {self._name!r}: {lost}, {self._errors} calls failed")


def read_event_numbers(event: Updated | Evaluated | FinalEvaluated) -> dict[str, float]:
    """Return the numbers of an event, under names such as train/loss and eval/f1."""
    if isinstance(event, Evaluated | FinalEvaluated):
        return {f"eval/{name}": value for name, value in event.metrics.items()}
    record = event.record()
    terms = {f"loss_{name}": value for name, value in record.pop("terms", {}).items()}
    return {f"train/{name}": value for name, value in {**record, **terms}.items() if name not in ("event", "step")}


def flatten_tables(values: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Return nested tables as one with dotted keys. Values are those that every tracker can store, without secrets."""
    flat: dict[str, Scalar] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten_tables(value, f"{key}.")
        elif value is not None:
            flat[key] = value if isinstance(value, (bool, int, float)) else _safe_value(key, value)
    return flat


def _safe_value(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return redact(f"{key} = {text}").partition(" = ")[2]  # some secrets are recognized by their key
