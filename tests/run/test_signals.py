"""The first signal asks, the second ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from taskrecipe.run.signals import Signals
from taskrecipe.training.control import Control

signum = int(sys.argv[1])
with Signals() as signals:
    signals.control = Control()
    os.kill(os.getpid(), signum)
    signals.control.agree()
    print(signals.control.stopping, signals.control.signum == signum, flush=True)
    os.kill(os.getpid(), signum)
    print("still here")
"""


@pytest.mark.parametrize(
    "signum",
    [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2],
    ids=lambda signum: signum.name,
)
def test_the_second_signal_ends_even_what_does_not_come_to_an_end(signum: signal.Signals) -> None:
    as_usual = f"import signal; signal.signal({int(signum)}, signal.default_int_handler)\n"  # also under nohup
    done = subprocess.run(
        [sys.executable, "-c", as_usual + SCRIPT, str(int(signum))],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == f"interrupted by {signum.name} True\n"
    assert done.returncode == 128 + signum


def test_a_hangup_that_the_process_ignores_stays_ignored() -> None:
    """`nohup recipe run` survives the end of its terminal."""
    ignore = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    done = subprocess.run(
        [sys.executable, "-c", ignore + SCRIPT, str(int(signal.SIGHUP))], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "None False\nstill here\n"
    assert done.returncode == 0
