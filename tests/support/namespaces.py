"""Two machines on one: network namespaces with a cable between them, and host names of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOSTS = ("east", "west")

CONFIGURATION = Path("/etc/netns")
"""Where `ip netns exec` looks for files that take the place of those in /etc."""


@dataclass(frozen=True)
class Machine:
    """A network namespace with one cable."""

    host: str
    namespace: str
    cable: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """Return a command that runs there."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname {self.host}; exec "$@"', "sh"]
        return ["ip", "netns", "exec", self.namespace, *named, *arguments]

    def cut_cable(self) -> None:
        """Let packets get lost from now on, without a word to the other end."""
        _ip("-n", self.namespace, "link", "set", self.cable, "down")


def why_not() -> str | None:
    """Why there can't be namespaces here; None if there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    name = f"recipe-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "network namespaces are not allowed here"
    _ip("netns", "delete", name)
    return None


@contextmanager
def two_machines() -> Iterator[list[Machine]]:
    """Make two machines that reach each other, and nobody else."""
    number = os.getpid() % 100_000
    machines = [
        Machine(host, f"recipe-{number}-{host}", f"cable{number}{host[0]}", f"10.77.0.{place}")
        for place, host in enumerate(HOSTS, start=1)
    ]
    try:
        for machine in machines:
            _write_hosts(machine, machines)
            _ip("netns", "add", machine.namespace)
            _ip("-n", machine.namespace, "link", "set", "lo", "up")
        first, second = (machine.cable for machine in machines)
        _ip("link", "add", first, "type", "veth", "peer", "name", second)
        for machine in machines:
            _ip("link", "set", machine.cable, "netns", machine.namespace)
            _ip("-n", machine.namespace, "address", "add", f"{machine.address}/24", "dev", machine.cable)
            _ip("-n", machine.namespace, "link", "set", machine.cable, "up")
        yield machines
    finally:
        for machine in machines:
            subprocess.run(["ip", "netns", "delete", machine.namespace], capture_output=True, check=False)
            shutil.rmtree(CONFIGURATION / machine.namespace, ignore_errors=True)


def _write_hosts(machine: Machine, machines: list[Machine]) -> None:
    """Let commands on a machine find the others by name, as those of a cluster do."""
    folder = CONFIGURATION / machine.namespace
    folder.mkdir(parents=True)
    lines = ["127.0.0.1 localhost", *(f"{other.address} {other.host}" for other in machines)]
    (folder / "hosts").write_text("\n".join(lines) + "\n")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
