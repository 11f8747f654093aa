"""Connect the processes that torchrun, accelerate launch, srun or mpirun started, also on several machines.

The processes find each other through a store: a small server of torch, which torchrun keeps itself and which else the
first process opens, at the address of one interface. Each process writes a card with its machine into it; the first one
collects them and writes the roll that all agree on. Everything later has the roll's token in its key. A store that
outlives its processes, because torchrun starts them again, holds entries of earlier starts: addresses at which nobody
answers any more. Nobody reads those, and no process waits for them.

Nothing that comes from the store is unpickled. It has no password: across machines, the network must be trusted.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import RunStopped, UsageError
from taskrecipe.run import interfaces
from taskrecipe.run.launchers import Seat, find_seat, name_elastic_launcher
from taskrecipe.run.opened_sockets import OpenedSockets
from taskrecipe.run.peers import Card, Peers

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Launch

LONGEST_SECONDS = 10**7
"""The longest time limit that torch is given: it counts in small units, and four months are enough."""

ANSWER_SECONDS = 20.0
"""How long the machine of the store may leave a message unanswered before it counts as lost."""

PAUSE = 0.05
"""Seconds between two looks into the store."""

Store = Any
"""`torch.distributed.Store`"""


@contextmanager
def join_peers(launch: Launch) -> Iterator[Peers]:
    """Connect to the other processes, if there are any and nobody has done it yet; disconnect at the end."""
    from torch import distributed

    seat = find_seat()
    if seat is None or distributed.is_initialized():  # alone; or a host, or our own launcher, has connected them
        yield Peers.none()
        return
    meeting = Meeting(seat, launch)
    os.environ.update(seat.environment(), MASTER_ADDR=meeting.address, MASTER_PORT=str(meeting.port))
    roll = meeting.gather()
    _choose_interfaces(roll, seat.rank, launch.interface)
    peers = Peers(meeting.connect_again(), roll.token, roll.cards, seat.rank, meeting.address)
    with peers.sending_heartbeats(), peers.printing_once():
        with OpenedSockets(meeting.port) as peers.connections:
            init_group(_with_prefix(roll.token, meeting.store), seat.rank, seat.size, launch)
        try:
            yield peers
        finally:
            with suppress(RuntimeError):  # another process has gone, and this one ends with an error of its own
                distributed.destroy_process_group()


def init_group(store: Store, rank: int, size: int, launch: Launch) -> None:
    """Make torch's process group of all processes, before Accelerate would do it in its own way."""
    import torch
    from torch import distributed

    on_cpu, limit = launch.device == "cpu", timedelta(seconds=min(launch.timeout, LONGEST_SECONDS))
    device = None if on_cpu or not torch.accelerator.is_available() else torch.accelerator.current_accelerator()
    backend = (
        "gloo" if device is None else f"cpu:gloo,{device.type}:{distributed.get_default_backend_for_device(device)}"
    )
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)


class Roll:
    """Who takes part: one card for each process. The token is new each time."""

    def __init__(self, token: str, cards: list[Card]) -> None:
        self.token, self.cards = token, cards

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({"token": self.token, "cards": [vars(card) for card in self.cards]})

    @classmethod
    def from_json(cls, content: bytes) -> Roll:
        """Make the roll that `to_json` returned."""
        found = json.loads(content)
        return cls(found["token"], [Card(**card) for card in found["cards"]])


class Meeting:
    """Finds the other processes through the store."""

    def __init__(self, seat: Seat, launch: Launch) -> None:
        self.seat, self.launch = seat, launch
        self.deadline = time.monotonic() + launch.timeout
        self.address, self.port = seat.find_store()
        own = interfaces.choose_address(launch.interface, self.address, one_machine=seat.size == seat.local_size)
        self.card = Card.describe_process(own, name_elastic_launcher())
        self._server = self._open_store(own) if self._hosts_store else None
        self.store = self._connect()

    @property
    def _hosts_store(self) -> bool:
        return self.seat.rank == 0 and not self.seat.has_agent_store

    def gather(self) -> Roll:
        """Return the roll, once every process has agreed to it."""
        while True:
            try:
                return self._call_roll() if self.seat.rank == 0 else self._answer_roll()
            except RuntimeError as error:  # the store of an earlier start has ended while this process was reading it
                if not _is_store_error(error):
                    raise
                self._check_time(str(error))
                self.store = self._connect()

    def connect_again(self) -> Store:
        """Return a second connection to the store: a thread that waits on one blocks every other."""
        with OpenedSockets(served_port=0) as opened:
            store = self._connect()
        opened.limit_silence(ANSWER_SECONDS)
        return store

    def _call_roll(self) -> Roll:
        """Collect the cards of all processes until each has agreed to a roll with its own card in it."""
        token, ranks = secrets.token_hex(8), range(self.seat.size)
        cards = {0: self.card}
        while True:
            found = self._read([f"card/{rank}" for rank in ranks[1:]])
            cards |= {int(key.rpartition("/")[2]): Card(**json.loads(value)) for key, value in found.items()}
            if len(cards) == len(ranks):
                roll = Roll(token, [cards[rank] for rank in ranks])
                self.store.set("roll", roll.to_json())
                answers = self._read([f"answer/{rank}" for rank in ranks[1:]])
                if all(answers.get(f"answer/{rank}") == _answer(token, cards[rank]) for rank in ranks[1:]):
                    self.store.set(f"agreed/{token}", roll.to_json())
                    return roll
            missing = [str(rank + 1) for rank in ranks if rank not in cards]
            self._check_time(f"no sign of process {', '.join(missing)}" if missing else "not all have answered")
            time.sleep(PAUSE)

    def _answer_roll(self) -> Roll:
        """Write this process's card, agree to a roll that holds it, and return the roll that all have agreed to."""
        self.store.set(f"card/{self.seat.rank}", json.dumps(vars(self.card)))
        while True:
            for content in self._read(["roll"]).values():
                roll = Roll.from_json(content)
                if len(roll.cards) == self.seat.size and roll.cards[self.seat.rank] == self.card:
                    self.store.set(f"answer/{self.seat.rank}", _answer(roll.token, self.card))
                    for agreed in self._read([f"agreed/{roll.token}"]).values():
                        return Roll.from_json(agreed)
            self._check_time(f"process 1 at {self.address} has not answered")
            time.sleep(PAUSE)

    def _read(self, keys: list[str]) -> dict[str, bytes]:
        """Return those entries of the store that are there."""
        there = [key for key in keys if self.store.check([key])]
        return dict(zip(there, self.store.multi_get(there), strict=True)) if there else {}

    def _check_time(self, reason: str) -> None:
        if time.monotonic() > self.deadline:
            raise RunStopped(
                f"{self.seat.size} processes were to train together, but did not find each other within "
                f"{self.launch.timeout} seconds ([launch].timeout): {reason}. They meet at {self.address}, port "
                f"{self.port}; other machines must reach it"
            )

    def _open_store(self, address: str) -> Store:
        """Listen at one address of this machine, and nowhere else."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                listening.bind((address, self.port))
                break
            except OSError as error:
                if time.monotonic() > self.deadline or self.seat.launcher == "srun":
                    message = f"port {self.port} of {address} can't be opened: {error.strerror}; set MASTER_PORT"
                    raise UsageError(message) from error
                time.sleep(PAUSE)  # the process that had it before torchrun's restart has not quite ended
        listening.listen(1024)
        descriptor = listening.detach()
        tcp_store = _load("TCPStore")
        return tcp_store(address, self.port, None, True, wait_for_workers=False, master_listen_fd=descriptor)

    def _connect(self) -> Store:
        target, tcp_store = self.card.address if self._hosts_store else self.address, _load("TCPStore")
        while True:
            limit = timedelta(seconds=max(1.0, min(30.0, self.deadline - time.monotonic())))
            try:
                store = tcp_store(target, self.port, None, False, timeout=limit, wait_for_workers=False)
                return _with_prefix("taskrecipe", store)
            except RuntimeError as error:
                self._check_time(str(error).partition("\n")[0])


def _load(name: str) -> Any:
    """Return a class of torch that is public, but not in its module's `__all__`, so that type checkers miss it."""
    from torch import distributed

    return getattr(distributed, name)


def _with_prefix(prefix: str, store: Store) -> Store:
    return _load("PrefixStore")(prefix, store)


def _answer(token: str, card: Card) -> bytes:
    return f"{token}:{card.nonce}".encode()


def _is_store_error(error: RuntimeError) -> bool:
    from torch.distributed import DistError

    return isinstance(error, DistError)


def _choose_interfaces(roll: Roll, rank: int, named: str | None) -> None:
    """Let the backends listen on one interface: the named one, the one to the other machines, or else loopback."""
    own = roll.cards[rank].address
    if len({card.machine for card in roll.cards}) == 1:
        chosen: str | None = interfaces.LOOPBACK
    elif named is not None:
        chosen = named
    else:
        outward = (interfaces.find_outward_address() or own) if interfaces.is_loopback(own) else own
        chosen = interfaces.find_interface(outward)
    if chosen is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", chosen)
    if named is not None or chosen == interfaces.LOOPBACK:  # else NCCL finds its own way, such as InfiniBand
        os.environ.setdefault("NCCL_SOCKET_IFNAME", chosen)
