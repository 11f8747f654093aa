"""The first signal asks, the second ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from taskrecipe.core.signals import Signals
from taskrecipe.core.training.control import Control

signum = int(sys.argv[1])
with Signals() as signals:
    signals.control = Control()
    os.kill(os.getpid(), signum)
    signals.control.agree()
    print(signals.control.stopping, signals.control.signum == signum, flush=True)
    os.kill(os.getpid(), signum)
    print("still here")
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_the_second_signal_ends_even_what_does_not_come_to_an_end(signum: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(int(signum))], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == f"interrupted by {signum.name} True\n"
    assert done.returncode == 128 + signum
