"""Several processes on one machine: they connect over the loopback interface, and no port is open to other machines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import psutil

SPEC = Path(__file__).parents[2] / "specs" / "mrpc.toml"
TRAIN = f"""
import taskrecipe
taskrecipe.train({str(SPEC)!r}, sample=True, quiet=True, processes=2, set={{"train.updates": 8}})
"""


def local_addresses(parent: psutil.Process) -> Iterator[str]:
    """Yield the address of every socket that listens in the processes of a run."""
    for process in [parent, *parent.children(recursive=True)]:
        with suppress(psutil.Error):
            yield from (
                socket.laddr.ip for socket in process.net_connections("inet") if socket.status == psutil.CONN_LISTEN
            )


def test_processes_listen_on_the_loopback_interface_only(tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    training = subprocess.Popen([sys.executable, "-W", "ignore", "-c", TRAIN], cwd=tmp_path, env=env)
    addresses: set[str] = set()
    while training.poll() is None:
        with suppress(psutil.Error):
            addresses.update(local_addresses(psutil.Process(training.pid)))
        time.sleep(0.05)
    assert training.returncode == 0
    assert addresses, "the processes have connected, so some socket must have listened"
    assert all(ip_address(address).is_loopback for address in addresses), addresses
