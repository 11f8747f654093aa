import json

import pytest

from taskrecipe.errors import UsageError
from taskrecipe.plugins.callbacks import Clock
from taskrecipe.plugins.registry import installed
from taskrecipe.training.control import Control
from taskrecipe.training.events import End, Evaluated, Start, Updated


def table_of(name, **options):
    return installed().callback(name).model_validate({"name": name, **options})


def update(step=1):
    return Updated(step, epoch=0, learning_rate=1e-3)


def evaluation(**metrics):
    return Evaluated(1, epoch=0, metrics=metrics, best=False, seconds=0.1)


def asked(listener, *events):
    """Why the run should stop after these events, or None."""
    control = Control()
    for event in events:
        listener.on_event(event, control)
        control.agree()
    return control.stopping


class Time:
    """A clock that is set by hand."""

    seconds = 1000.0

    def __call__(self):
        return self.seconds


def test_time_limit_stops_once_time_is_up_and_not_before():
    now = Time()
    clock = Clock(0.5, now)
    assert asked(clock, Start(0, updates=9, updates_per_epoch=3)) is None
    now.seconds += 29.9
    assert asked(clock, update()) is None
    now.seconds += 0.1
    assert asked(clock, update()) == "the time limit of 0.5 minutes is reached"


def test_time_limit_counts_what_was_taken_before_a_resume_but_not_the_time_between():
    now = Time()
    first = Clock(1.0, now)
    now.seconds += 40
    saved = json.loads(json.dumps(first.state()))
    now.seconds += 10_000
    second = Clock(1.0, now)
    second.restore(saved)
    now.seconds += 19
    assert asked(second, update()) is None
    now.seconds += 1
    assert asked(second, update()) is not None
    assert second.state() == {"seconds": 60.0}


def test_time_limit_builds_a_clock_that_runs():
    listener = table_of("time_limit", minutes=1e-9).build()
    assert asked(listener, update()) is not None
    assert asked(table_of("time_limit", minutes=60.0).build(), update()) is None


def test_time_limit_leaves_a_run_that_is_over_alone():
    assert asked(Clock(1e-9), End(1, "finished", "all updates taken")) is None


@pytest.mark.parametrize(
    ("bounds", "value", "reason"),
    [
        ({"above": 0.9}, 0.91, "f1 is 0.91, above 0.9"),
        ({"above": 0.9}, 0.9, None),
        ({"below": 0.2}, 0.1, "f1 is 0.1, below 0.2"),
        ({"below": 0.2}, 0.2, None),
        ({"above": 0.9, "below": 0.2}, 0.5, None),
        ({"above": 0.9, "below": 0.2}, 0.1, "f1 is 0.1, below 0.2"),
        ({"above": 0.0}, float("nan"), None),
        ({"above": 1}, float("inf"), "f1 is inf, above 1"),
    ],
)
def test_stop_when_a_metric_is_past_a_bound(bounds, value, reason):
    listener = table_of("stop_when", metric="f1", **bounds).build()
    assert asked(listener, update(), evaluation(f1=value, loss=100.0)) == reason


def test_stop_when_names_its_metric_and_refuses_one_that_is_not_reported():
    table = table_of("stop_when", metric="f2", above=0.5)
    assert table.metrics() == ("f2",)
    with pytest.raises(UsageError, match="'f2', but evaluation reports accuracy, f1"):
        asked(table.build(), evaluation(f1=0.5, accuracy=0.5))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("stop_when", {"metric": "f1"}, "'above' or 'below'"),
        ("stop_when", {"metric": "f1", "above": 0.1, "below": 0.2}, "every number is above 0.1 or below 0.2"),
        ("stop_when", {"above": 0.1}, "metric"),
        ("stop_when", {"metric": "f1", "above": float("inf")}, "above"),
        ("time_limit", {}, "minutes"),
        ("time_limit", {"minutes": 0}, "minutes"),
    ],
)
def test_values_that_cannot_be_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        table_of(name, **options)
