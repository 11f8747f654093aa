"""Libraries are quiet while they work, and as they were afterwards."""

from __future__ import annotations

import logging

import datasets
import huggingface_hub.utils as hub
import pytest
from transformers.utils import logging as transformers_logging

from taskrecipe.system.library_output import quiet_libraries

LIBRARIES = ("datasets", "huggingface_hub", "transformers")


def bars() -> list[bool]:
    return [
        not datasets.are_progress_bars_disabled(),
        not hub.are_progress_bars_disabled(),
        transformers_logging.is_progress_bar_enabled(),
    ]


@pytest.mark.parametrize("shown", [True, False])
def test_logs_and_bars_are_off_inside_and_as_before_outside(shown: bool) -> None:
    before = bars()
    switches = (datasets.enable_progress_bars, hub.enable_progress_bars, transformers_logging.enable_progress_bar)
    hides = (datasets.disable_progress_bars, hub.disable_progress_bars, transformers_logging.disable_progress_bar)
    for switch in switches if shown else hides:
        switch()
    levels = [logging.getLogger(name).level for name in LIBRARIES]
    with quiet_libraries(*LIBRARIES):
        assert bars() == [False, False, False]
        assert not any(logging.getLogger(name).isEnabledFor(logging.ERROR) for name in LIBRARIES)
    assert bars() == [shown] * 3
    assert [logging.getLogger(name).level for name in LIBRARIES] == levels
    for was_shown, show, hide in zip(before, switches, hides, strict=True):
        (show if was_shown else hide)()


def test_a_terminal_shows_no_bars_of_libraries_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with quiet_libraries(*LIBRARIES):
        assert bars() == [False, False, False]
