"""What is asked counts when all processes know of it, not before."""

from __future__ import annotations

import signal

import pytest

from taskrecipe.training import exchange
from taskrecipe.training.control import Control


def read(control: Control) -> tuple[str | None, int | None, bool, bool]:
    return control.stopping, control.signum, control.wants_evaluation, control.wants_save


def test_nothing_counts_before_it_is_agreed_on() -> None:
    control = Control()
    control.evaluate()
    control.save()
    control.stop("enough")
    assert read(control) == (None, None, False, False)
    control.agree()
    assert read(control) == ("enough", None, True, True)


def test_what_was_answered_is_not_asked_again() -> None:
    control = Control()
    control.evaluate()
    control.agree()
    control.wants_evaluation = False  # the loop has evaluated
    control.agree()
    assert read(control) == (None, None, False, False)


def test_the_first_reason_stays() -> None:
    control = Control()
    control.stop("first")
    control.agree()
    assert control.interrupt(signal.SIGTERM, "second")
    assert not control.interrupt(signal.SIGTERM, "third")
    control.agree()
    assert read(control) == ("first", signal.SIGTERM, False, False)


def test_a_process_does_what_another_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "max_over_processes", lambda asked: [1, int(signal.SIGINT), 0, 1, 0])
    control = Control()
    control.agree()
    assert read(control) == ("interrupted by SIGINT", signal.SIGINT, False, True)


def test_a_signal_while_processes_agree_counts_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it counted at once, this process would stop alone; if it were overwritten, never."""
    control = Control()

    def interrupted(asked: list[int]) -> list[int]:
        control.interrupt(signal.SIGTERM, "interrupted by SIGTERM")
        return asked

    monkeypatch.setattr(exchange, "max_over_processes", interrupted)
    control.agree()
    assert read(control) == (None, None, False, False)
    control.agree()
    assert read(control) == ("interrupted by SIGTERM", signal.SIGTERM, False, False)
