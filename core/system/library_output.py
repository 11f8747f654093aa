"""Turn off the logs and progress bars of the Hugging Face libraries; our own errors report what they raise."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

WITHOUT_BARS = {"bitsandbytes"}
"""Libraries that only log."""


@contextmanager
def quiet_libraries(*libraries: str) -> Iterator[None]:
    """Turn off the logs and progress bars of `libraries` inside the block. A run shows a bar of its own."""
    with ExitStack() as at_exit:
        for name in libraries:
            logger = logging.getLogger(name)
            at_exit.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
            if name not in WITHOUT_BARS:
                at_exit.callback(_hide_bars(name))
        if "transformers" in libraries and "deepspeed" not in sys.modules and find_spec("deepspeed"):
            at_exit.enter_context(quiet_imports())  # to save a model it asks whether DeepSpeed has wrapped it
        yield


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Turn off all logs but errors inside the block: DeepSpeed logs while it is imported, before it can be told."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _hide_bars(library: str) -> Callable[[], None]:
    """Hide a library's progress bars and return a function that restores the former setting."""
    module: Any = import_module(f"{library}.utils")
    if library == "transformers":
        were_on = module.logging.is_progress_bar_enabled()
        hide, show = module.logging.disable_progress_bar, module.logging.enable_progress_bar
    else:
        were_on = not module.are_progress_bars_disabled()
        hide, show = module.disable_progress_bars, module.enable_progress_bars
    hide()
    return show if were_on else lambda: None
