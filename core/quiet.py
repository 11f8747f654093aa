"""Keeping the Hugging Face libraries quiet while they work for us: their errors reach the user through ours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def quiet(*libraries: str) -> Iterator[None]:
    """Silence the logs of `libraries`, and keep their progress bars to terminals."""
    with ExitStack() as until_the_end:
        for name in libraries:
            logger = logging.getLogger(name)
            until_the_end.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
            if not sys.stderr.isatty():
                until_the_end.callback(_hide_bars(name))
        yield


def _hide_bars(library: str) -> Callable[[], None]:
    """Hide a library's progress bars; what is returned brings them back, if they were there."""
    module: Any = import_module(f"{library}.utils")
    if library == "transformers":
        shown = module.logging.is_progress_bar_enabled()
        hide, show = module.logging.disable_progress_bar, module.logging.enable_progress_bar
    else:
        shown = not module.are_progress_bars_disabled()
        hide, show = module.disable_progress_bars, module.enable_progress_bars
    hide()
    return show if shown else lambda: None
