import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import installed
from taskrecipe.plugins.trackers import QUEUE_LENGTH, Tracking, flatten_tables
from taskrecipe.training.control import Control
from taskrecipe.training.events import End, EpochStart, Evaluated, Start, Updated

CONFIG = {"recipe": "glue", "train": {"learning_rate": 1e-3, "epochs": None}, "evaluate": {"splits": ["a", "b"]}}
CALLS = ("init", "start", "store_init_configuration", "log", "finish")
PATIENCE = 0.3


def table_of(name, **options):
    return installed().tracker(name).model_validate({"name": name, **options})


def updated(step, loss=None, **more):
    return Updated(step, epoch=0, learning_rate=0.5, loss=loss, **more)


RUN = [
    Start(0, updates=4, updates_per_epoch=2),
    EpochStart(0, epoch=0),
    updated(1, 4.0, grad_norm=1.5),
    updated(2),
    updated(3, 2.0, terms={"boxes": 1.5, "classes": 0.5}),
    Evaluated(4, epoch=1, metrics={"f1": 0.75, "loss": 1.0}, best=True, seconds=0.1),
    End(4, "finished", "all updates taken"),
]


class Fake(GeneralTracker):
    """Notes what it is told; `trouble`, if there is any, comes in the call named `where`."""

    name = "fake"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, where=None, trouble=None):
        super().__init__()
        self.where, self.trouble, self.calls, self.threads = where, trouble, [], set()
        self._called("init")

    tracker = None

    def start(self):
        self._called("start")

    def store_init_configuration(self, values):
        self._called("store_init_configuration", values)

    def log(self, values, step=None, **kwargs):
        self._called("log", values, step)

    def finish(self):
        self._called("finish")

    def _called(self, name, *arguments):
        self.threads.add(threading.current_thread().name)
        if name == self.where:
            self.trouble()
        self.calls.append((name, *arguments))


class Run:
    """Tells a tracker of a run, and notes how long that takes and what is warned of, on which thread."""

    def __init__(self, build, events=RUN, patience=30.0):
        self.warnings, self.threads = [], set()
        self.tracking = Tracking("fake", build, CONFIG, self.warn, patience)
        start = time.perf_counter()
        for event in events[:-1]:
            self.tracking.on_event(event, Control())
        self.seconds = time.perf_counter() - start
        self.tracking.on_event(events[-1], Control())
        self.seconds_in_all = time.perf_counter() - start

    def warn(self, message):
        self.warnings.append(message)
        self.threads.add(threading.current_thread())


def test_a_tracker_is_told_the_configuration_the_numbers_that_were_read_and_the_end():
    fake = Fake()
    run = Run(lambda: fake)
    assert run.warnings == []
    assert fake.calls == [
        ("init",),
        ("start",),
        (
            "store_init_configuration",
            {"recipe": "glue", "train.learning_rate": 1e-3, "evaluate.splits": '["a", "b"]'},
        ),
        ("log", {"train/epoch": 0, "train/learning_rate": 0.5, "train/loss": 4.0, "train/grad_norm": 1.5}, 1),
        (
            "log",
            {
                "train/epoch": 0,
                "train/learning_rate": 0.5,
                "train/loss": 2.0,
                "train/loss_boxes": 1.5,
                "train/loss_classes": 0.5,
            },
            3,
        ),
        ("log", {"eval/f1": 0.75, "eval/loss": 1.0}, 4),
        ("finish",),
    ]
    assert fake.threads == {threading.current_thread().name, "tracker fake"}  # made here, used there
    assert not run.tracking.hung


def fail():
    raise RuntimeError("no route to host")


@pytest.mark.parametrize("trouble", [fail, sys.exit], ids=["raises", "exits"])
@pytest.mark.parametrize("where", CALLS)
def test_a_tracker_that_raises_in_any_call_never_stops_the_run(where, trouble):
    made = []

    def build():
        made.append(Fake(where, trouble))
        return made[-1]

    run = Run(build)
    assert run.seconds_in_all < 10
    first, summary = run.warnings
    assert first.startswith("tracker 'fake' failed; training continues: ")
    assert ("no route to host" in first) == (trouble is fail)
    lost = {"init": 4, "start": 4, "store_init_configuration": 1, "log": 3, "finish": 0}[where]
    failed = 3 if where == "log" else 1
    assert summary == f"tracker 'fake': {lost} of 4 records were not sent, {failed} calls failed"
    assert run.threads == {threading.current_thread()}
    if where in ("store_init_configuration", "log"):  # what works is still done
        assert ("finish",) in made[0].calls


@pytest.mark.parametrize("where", CALLS)
def test_a_tracker_that_hangs_in_any_call_costs_no_more_than_patience_at_the_end(where):
    released = threading.Event()
    many = [RUN[0], *(updated(step, 1.0) for step in range(QUEUE_LENGTH + 500)), RUN[-1]]
    try:
        run = Run(lambda: Fake(where, released.wait), many, PATIENCE)
    finally:
        released.set()
    assert run.seconds < 5
    assert PATIENCE <= run.seconds_in_all < run.seconds + PATIENCE + 5
    *_, last = run.warnings
    assert last.startswith(f"tracker 'fake' did not finish in {PATIENCE} s: ")
    total = QUEUE_LENGTH + 501
    sent = 1 if where == "log" else 0  # the configuration went through
    if where != "finish":
        assert last.endswith(f"{total - sent} of {total} records were not sent")


def test_a_tracker_that_was_given_up_is_known_to_hang():
    released = threading.Event()
    try:
        run = Run(lambda: Fake("finish", released.wait), patience=PATIENCE)
        assert run.tracking.hung
    finally:
        released.set()


def test_what_a_slow_tracker_has_no_room_for_is_dropped_and_counted():
    go = threading.Event()
    fake = Fake("start", lambda: go.wait(10))
    warnings = []
    tracking = Tracking("fake", lambda: fake, CONFIG, warnings.append, patience=10)
    tracking.on_event(RUN[0], Control())
    for step in range(QUEUE_LENGTH + 99):
        tracking.on_event(updated(step, 1.0), Control())
    go.set()
    tracking.on_event(RUN[-1], Control())
    assert warnings == [f"tracker 'fake': 100 of {QUEUE_LENGTH + 100} records were not sent, 0 calls failed"]


def test_the_first_error_is_told_while_the_run_goes_on():
    warnings, failed = [], threading.Event()

    def build():
        failed.set()
        raise RuntimeError("no key")

    tracking = Tracking("fake", build, CONFIG, warnings.append)
    tracking.on_event(RUN[0], Control())
    assert failed.wait(10)
    deadline = time.monotonic() + 10
    while not warnings and time.monotonic() < deadline:
        tracking.on_event(updated(1), Control())
    assert warnings == ["tracker 'fake' failed; training continues: RuntimeError: no key"]


def test_closing_twice_or_before_the_start_does_nothing():
    fake, warnings = Fake(), []
    tracking = Tracking("fake", lambda: fake, CONFIG, warnings.append)
    tracking.close()
    tracking.on_event(RUN[0], Control())
    tracking.close()
    tracking.close()
    assert fake.calls.count(("finish",)) == 1
    assert warnings == []


def test_secrets_are_hidden_from_trackers_and_from_warnings(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "canary-in-the-environment")
    token = "hf_" + "a" * 30
    hidden = (token, "canary-in-the-environment", "canary-by-its-key", "canary-password")
    config = {
        "data": {"path": token, "url": "https://me:canary-password@host/x", "files": ["canary-in-the-environment"]},
        "track": {"options": {"api_key": "canary-by-its-key", "entity": "us"}},
    }
    flat = flatten_tables(config)
    assert flat["track.options.entity"] == "us"
    assert not [secret for secret in hidden if secret in str(flat)]

    def build():
        raise RuntimeError(f"refused: {token}, canary-in-the-environment, https://me:canary-password@host")

    run = Run(build)
    assert "refused" in run.warnings[0]
    assert not [secret for secret in hidden if secret in str(run.warnings)]


# Accelerate's trackers --------------------------------------------------------------------------------


def test_tensorboard_files_hold_the_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    table = table_of("tensorboard", project="mrpc", options={"flush_secs": 1})
    table.require()
    run = Run(lambda: table.build("first", str(tmp_path / "track")))
    assert run.warnings == []
    events = EventAccumulator(str(tmp_path / "track" / "mrpc"))
    events.Reload()
    numbers = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert numbers["train/loss"] == [(1, 4.0), (3, 2.0)]
    assert numbers["train/learning_rate"] == [(1, 0.5), (3, 0.5)]
    assert numbers["train/loss_boxes"] == [(3, 1.5)]
    assert numbers["eval/f1"] == [(4, 0.75)]
    (stored,) = Path(tmp_path).rglob("hparams.yml")
    assert yaml.safe_load(stored.read_text())["train.learning_rate"] == 1e-3


def test_every_tracker_of_accelerate_can_be_named_and_built(tmp_path):
    assert set(LOGGER_TYPE_TO_CLASS) == {
        p.name for p in installed().plugins if p.group == "trackers" and p.distribution == "taskrecipe"
    }
    for name, kind in LOGGER_TYPE_TO_CLASS.items():
        tracker = table_of(f"taskrecipe:{name}", project="mrpc").build("first", str(tmp_path))
        assert type(tracker) is kind


def test_options_reach_the_tracker_and_win_over_what_is_set_for_it(tmp_path):
    tracker = table_of("wandb", project="mrpc", options={"mode": "offline"}).build("first", str(tmp_path))
    assert tracker.run_name == "mrpc"
    assert tracker.init_kwargs == {"name": "first", "dir": str(tmp_path), "mode": "offline"}
    tracker = table_of("wandb", options={"name": "other"}).build("first", str(tmp_path))
    assert tracker.run_name == "first"
    assert tracker.init_kwargs["name"] == "other"


@pytest.mark.parametrize(("name", "install"), [("wandb", r"taskrecipe\[wandb\]"), ("aim", "aim")])
def test_a_missing_package_is_told_before_anything_is_loaded(name, install, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"tracker '{name}' needs .* pip install '{install}'"):
        table_of(name).require()


@pytest.mark.parametrize("options", [{"tags": ["a"]}, {"nested": {"a": 1}}, {"rate": float("nan")}])
def test_options_are_scalars(options):
    with pytest.raises(ValueError, match="options"):
        table_of("wandb", options=options)
