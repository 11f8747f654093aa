"""Choose the network interface by which processes of several machines connect, and nothing else listens."""

from __future__ import annotations

import socket
import sys
from ipaddress import ip_address
from pathlib import Path

import psutil

from taskrecipe.errors import UsageError

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

_ELSEWHERE = "192.0.2.1"
"""An address that is kept for documents. No packet is sent: the system only says which way it would take."""


def find_address(interface: str) -> str:
    """Return the address of a named interface of this machine, or raise `UsageError` that lists those there are."""
    known = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in known.get(interface, []):
            if address.family == family:
                return str(address.address.partition("%")[0])
    names = ", ".join(sorted(known))
    raise UsageError(f"[launch].interface names '{interface}', but {socket.gethostname()} has the interfaces {names}")


def find_interface(address: str) -> str | None:
    """Return the interface of this machine that has an address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return name
    return None


def find_own_address(target: str) -> str | None:
    """Return the address of this machine from which it reaches a target; None if it can't be reached."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, place in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(place)
                return str(probe.getsockname()[0])
    except OSError:
        return None
    return None


def find_outward_address() -> str | None:
    """Return the address of this machine on the way to other networks; None where it has no such way."""
    found = find_own_address(_ELSEWHERE)
    return found if found and not is_loopback(found) else None


def is_loopback(address: str) -> bool:
    """Whether an address leads back to its own machine."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def name_machine() -> str:
    """Return a text that two processes share if they reach each other over loopback: a boot, and its network."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:  # not Linux
        return socket.gethostname()


def choose_address(interface: str | None, target: str, *, one_machine: bool) -> str:
    """Return the address at which this machine meets the others: that of the named interface, or the way to `target`.

    The name of a machine often leads back to the machine itself there. Other machines don't reach that address.
    """
    if interface is not None:
        return find_address(interface)
    found = find_own_address(target) or target
    if is_loopback(found) and not (one_machine or is_loopback(target)):
        return find_outward_address() or found
    return found
