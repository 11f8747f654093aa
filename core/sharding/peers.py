"""The processes that write a checkpoint of a sharded run together."""

from __future__ import annotations

import torch
from torch import distributed

from taskrecipe.checkpoints.manifest import FileRecord
from taskrecipe.training.exchange import gather_values


class CheckpointPeers:
    """The processes of a sharded run, on a connection of their own: what training exchanges can't be mixed up with it.

    All processes must make it together.
    """

    def __init__(self) -> None:
        self._group = distributed.new_group(backend="gloo")

    def meet(self) -> None:
        """Return once every process has called this."""
        distributed.all_reduce(torch.zeros(1), group=self._group)

    def exchange_records(self, records: dict[str, FileRecord]) -> dict[str, FileRecord]:
        """Return the records of all processes, once each has given its own."""
        own = {name: [record.bytes, record.sha256] for name, record in records.items()}
        everyone = gather_values(own, self._group)
        return {name: FileRecord(*record) for part in everyone for name, record in part.items()}
