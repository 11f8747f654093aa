"""The other processes of a run that another launcher started: who they are, and why one of them failed.

Each process sends a heartbeat every second through the store. When an exchange fails, because a connection was
closed or `[launch].timeout` has passed, processes without a heartbeat are named with their machine. A process that
fails writes its error into the store first, so that the others raise that instead of torch's own error. One process
prints it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from taskrecipe.errors import RecipeError, RunStopped
from taskrecipe.run.error_reports import ErrorReport, make_error, report_error
from taskrecipe.run.interfaces import name_machine
from taskrecipe.run.opened_sockets import OpenedSockets

HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""

SILENT_SECONDS = 4.0
"""Seconds without a heartbeat after which a process is gone, once an exchange has failed."""

REPORT_SECONDS = 10.0
"""How long to wait for the other processes to report why they failed."""

_CONNECTION_WORDS = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset",
    "timed out",
    "socket",
    "pair closure",
)


@dataclass(frozen=True)
class Card:
    """One process of the run, as it introduces itself."""

    host: str
    pid: int
    address: str
    """The address at which the others reach its machine."""
    machine: str
    """The same for all processes that reach each other over loopback, and for no others."""
    launcher: str | None = None
    """The torchrun that started it."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def describe_process(cls, address: str, launcher: str | None) -> Card:
        """Return the card of this process. A node of SLURM has the name that SLURM gives it."""
        host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        return cls(host, os.getpid(), address, name_machine(), launcher)


class Peers:
    """All processes of the run; none if this process is alone, or if our own launcher watches it."""

    def __init__(self, store: Any, token: str, cards: list[Card], rank: int, place: str = "") -> None:
        self._store, self._token, self._place = store, token, place
        self.cards, self.rank = cards, rank
        self.main_is_lost = False
        """Whether the process that writes into the run's folder has gone."""
        self.connections: OpenedSockets | None = None
        """The connections by which processes exchange tensors."""
        self._ended = threading.Event()
        self._explained: Exception | None = None
        self._lost: list[int] = []

    @classmethod
    def none(cls) -> Peers:
        """Return the peers of a process that has none, or that is watched otherwise."""
        return cls(None, "", [], 0)

    @property
    def launchers(self) -> list[str]:
        """The launchers that start processes again."""
        return sorted({card.launcher for card in self.cards if card.launcher})

    @property
    def machines(self) -> list[str]:
        """The machines, in the order of their processes."""
        return list(dict.fromkeys(card.host for card in self.cards))

    def describe_network(self) -> str | None:
        """Return a warning about the network by which the machines are connected; None on one machine."""
        if len({card.machine for card in self.cards}) < 2:
            return None
        count = f"{len(self.machines)} machine{'s' if len(self.machines) > 1 else ''}"
        where = os.environ.get("GLOO_SOCKET_IFNAME")
        return (
            f"{count} ({', '.join(self.machines)}){f' over {where}' if where else ''}; without password or "
            "encryption, so the network must be trusted"
        )

    @contextmanager
    def sending_heartbeats(self) -> Iterator[None]:
        """Send heartbeats while the block runs."""
        thread = threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(HEARTBEAT_SECONDS)

    def _send_heartbeats(self) -> None:
        number = 0
        with suppress(RuntimeError):  # the store has gone, and with it the run
            while not self._ended.wait(HEARTBEAT_SECONDS if number else 0.0):
                number += 1
                self._store.set(self._key("heartbeat", self.rank), str(number))

    # Failures ---------------------------------------------------------------------------------------

    def explain(self, error: Exception) -> Exception:
        """Return the error that ended the run: this one, another process's, or one that names the lost process.

        It is also posted to the store for the other processes.
        """
        if len(self.cards) < 2 or error is self._explained:
            return error
        is_named = _is_connection_error(error)
        if is_named:
            try:
                error = self._find_cause()
            except RuntimeError:
                self.main_is_lost = self.rank != 0
                error = _lost_error(f"the connection to {self._place}, where the processes meet, was lost")
        self._explained = error
        self._post({**report_error(error), "is_named": is_named, "lost": self._lost})
        return error

    def _find_cause(self) -> RecipeError:
        """Wait until another process says why it failed, or sends no heartbeat any more."""
        others = [rank for rank in range(len(self.cards)) if rank != self.rank]
        beats, changed = dict.fromkeys(others, b""), dict.fromkeys(others, time.monotonic())
        end = time.monotonic() + REPORT_SECONDS
        while time.monotonic() < end:
            if reports := self._read("error", others):
                return self._repeat_error({rank: json.loads(report) for rank, report in reports.items()})
            for rank, beat in self._read("heartbeat", others).items():
                if beat != beats[rank]:
                    beats[rank], changed[rank] = beat, time.monotonic()
            if silent := [rank for rank in others if time.monotonic() - changed[rank] > SILENT_SECONDS]:
                return self._name_lost(silent)
            time.sleep(0.2)
        return _lost_error("the processes waited for each other in vain, and all of them are running")

    def _repeat_error(self, reports: dict[int, ErrorReport]) -> RecipeError:
        """Return the error that came first, with the process that it comes from, unless it names one itself."""
        first = min(reports, key=lambda rank: float(reports[rank]["time"]))
        report = reports[first]
        self._lost, self.main_is_lost = report["lost"], 0 in report["lost"]
        return make_error(report, "" if report["is_named"] else f"{self._name(first)}: ")

    def _name_lost(self, ranks: list[int]) -> RunStopped:
        self._lost, self.main_is_lost = ranks, 0 in ranks
        hosts = list(dict.fromkeys(self.cards[rank].host for rank in ranks))
        if len(ranks) == 1 or len(hosts) > 1:
            return _lost_error(f"{' and '.join(map(self._name, ranks))} sent no heartbeat and was lost")
        numbers = ", ".join(str(rank + 1) for rank in ranks)
        return _lost_error(f"machine {hosts[0]} with the processes {numbers} sent no heartbeat and was lost")

    def _name(self, rank: int) -> str:
        card = self.cards[rank]
        return f"process {rank + 1} of {len(self.cards)} on {card.host} (process id {card.pid})"

    # Who prints -------------------------------------------------------------------------------------

    @contextmanager
    def printing_once(self) -> Iterator[None]:
        """Let one process print an error that ends the block in all of them."""
        try:
            yield
        except Exception as error:
            cause = self.explain(error)
            self._choose_printer(cause)
            if cause is error:
                raise
            raise cause from error

    def _choose_printer(self, error: Exception) -> None:
        """Mark the error if another process prints it. The main process does, unless it is lost."""
        if len(self.cards) < 2:
            return
        with suppress(RuntimeError):
            if self.rank == 0:
                self._store.set(self._key("printing"), "1")
                self._await_acknowledgments()
            elif not self.main_is_lost and self._await("printing", 2 * REPORT_SECONDS):
                self._store.set(self._key("acknowledged", self.rank), "1")
                error.is_printed_elsewhere = True  # type: ignore[attr-defined]
            elif self._store.add(self._key("printer"), 1) > 1:
                error.is_printed_elsewhere = True  # type: ignore[attr-defined]

    def _await(self, kind: str, seconds: float) -> bool:
        """Wait for an entry of the store; return whether it has come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._store.check([self._key(kind)]):
                return True
            time.sleep(0.1)
        return False

    def _await_acknowledgments(self) -> None:
        """Wait until the others know that this process prints the error: the store may end with it."""
        others = [rank for rank in range(1, len(self.cards)) if rank not in self._lost]
        end = time.monotonic() + REPORT_SECONDS
        while len(self._read("acknowledged", others)) < len(others) and time.monotonic() < end:
            time.sleep(0.1)

    # The store --------------------------------------------------------------------------------------

    def _post(self, report: ErrorReport) -> None:
        """Tell the others why this process fails, and wake those that wait for it."""
        with suppress(RuntimeError):
            self._store.set(self._key("error", self.rank), json.dumps(report))
        if self.connections is not None:
            self.connections.end_sending()

    def _read(self, kind: str, ranks: list[int]) -> dict[int, bytes]:
        keys = {rank: self._key(kind, rank) for rank in ranks}
        there = [rank for rank in ranks if self._store.check([keys[rank]])]
        values = self._store.multi_get([keys[rank] for rank in there]) if there else []
        return dict(zip(there, values, strict=True))

    def _key(self, kind: str, rank: int | None = None) -> str:
        return f"{self._token}/{kind}" if rank is None else f"{self._token}/{kind}/{rank}"


def _is_connection_error(error: Exception) -> bool:
    """Whether torch raised an error because another process has gone or does not answer."""
    from torch.distributed import DistError

    if isinstance(error, DistError):
        return True
    text = str(error).lower()
    return type(error) is RuntimeError and any(word in text for word in _CONNECTION_WORDS)


def _lost_error(reason: str) -> RunStopped:
    return RunStopped(f"{reason}. Checkpoints are intact: continue with `recipe resume`, launched in the same way")
