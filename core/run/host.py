"""Leaving the host process as it was: a notebook or server that calls `train` must not notice it afterwards."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any


class Environment:
    """The environment variables of the host, so that what a block changes of them can be undone."""

    def __init__(self) -> None:
        self.before = dict(os.environ)
        self.lent: dict[str, str] | None = None

    def lend(self) -> None:
        """Let the host work. What it changes until `take_back`, or the end of the block, is its own, and stays.

        A block that yields events may end much later, at any moment of the host's work: when it is collected.
        """
        if self.lent is None:
            self.lent = dict(os.environ)

    def take_back(self) -> None:
        """Go on with changes that are to be undone."""
        lent, self.lent = self.lent, None
        if lent is None:
            return
        for name in {*lent, *os.environ}:
            if (now := os.environ.get(name)) != lent.get(name):
                _assign(self.before, name, now)

    def restore(self) -> None:
        """Undo the changes of the block."""
        self.take_back()
        for name in {*self.before, *os.environ}:
            if (before := self.before.get(name)) != os.environ.get(name):
                _assign(os.environ, name, before)


def _assign(variables: MutableMapping[str, str], name: str, value: str | None) -> None:
    if value is None:
        variables.pop(name, None)
    else:
        variables[name] = value


@contextmanager
def preserve_host() -> Iterator[Environment]:
    """Restore environment variables, the garbage collector, random generators and hub settings after the block."""
    environment, collecting = Environment(), gc.isenabled()
    generators, offline = _read_generators(), _read_offline()
    try:
        yield environment
    finally:
        environment.restore()
        _restore_offline(offline)
        _restore_generators(generators)
        (gc.enable if collecting else gc.disable)()


@contextmanager
def fresh_accelerator() -> Iterator[None]:
    """Set Accelerate's global state aside in the block: a host's own may have another precision or device."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    states: list[Any] = [PartialState, AcceleratorState, GradientState]
    before = [dict(state._shared_state) for state in states]
    for state in states:
        state._shared_state.clear()
    try:
        yield
    finally:
        for state, values in zip(states, before, strict=True):
            state._shared_state.clear()
            state._shared_state.update(values)


def _read_generators() -> dict[str, Any]:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy else None,
        "torch": torch.get_rng_state() if torch else None,
    }


def _restore_generators(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    if states["numpy"] is not None:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if states["torch"] is not None:
        sys.modules["torch"].set_rng_state(states["torch"])


def _read_offline() -> dict[str, Any]:
    """Read whether the hub's libraries are offline, where they are loaded: they keep it outside the environment."""
    hub, datasets = sys.modules.get("huggingface_hub.constants"), sys.modules.get("datasets")
    return {
        "huggingface_hub.constants": hub.HF_HUB_OFFLINE if hub else None,
        "datasets.config": datasets.config.HF_HUB_OFFLINE if datasets else None,
    }


def _restore_offline(before: dict[str, Any]) -> None:
    was_offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")
    for name, value in before.items():
        module: Any = sys.modules.get(name)
        if module is not None:
            module.HF_HUB_OFFLINE = value if value is not None else was_offline
