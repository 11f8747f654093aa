"""What the exit code of a child process says."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Return how a process ended, from the code that Python's `subprocess` and `multiprocessing` give it."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
