"""A run's folder must be the same for all machines: the main process writes checkpoints, the others read them."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from taskrecipe.errors import UsageError
from taskrecipe.run.peers import Peers
from taskrecipe.training.exchange import broadcast_json, gather_values

SECONDS = 30.0
"""How long a file that one machine has written may take to appear on another: network file systems keep old answers."""


def require_shared_folder(folder: Path, peers: Peers) -> None:
    """Raise in every process unless each sees a file that the main process writes into the folder."""
    if len(peers.cards) < 2:
        return
    token = broadcast_json(f".shared-{secrets.token_hex(8)}")
    path = folder / token
    if peers.rank == 0:
        path.touch()
    try:
        seen = gather_values(_appears(path))
    finally:
        if peers.rank == 0:
            path.unlink(missing_ok=True)
    blind = list(dict.fromkeys(card.host for card, sees in zip(peers.cards, seen, strict=True) if not sees))
    if blind:
        raise UsageError(
            f"the run's folder {folder} is not shared: {', '.join(blind)} can't see what {peers.cards[0].host} writes "
            "there. Name a folder that every machine has, such as one on a network file system: --out FOLDER"
        )


def _appears(path: Path) -> bool:
    end = time.monotonic() + SECONDS
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True
