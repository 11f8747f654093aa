"""The priority of a thread."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

NICENESS = 10
"""Next to a thread of normal priority that is always busy, such a thread gets about a tenth of a core."""


def give_way() -> None:
    """Let this thread give way to others, where the system has priorities for threads: work in the background."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
