"""What the process of one run of a sweep is asked to do, as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from taskrecipe.run.pause import Pause
from taskrecipe.run.request import Request, as_assignments


@dataclass(frozen=True)
class Order:
    """A run to start or to resume, in a process of its own."""

    sweep: str
    """The sweep's folder."""
    name: str
    copy_of: str
    """The file of the sweep."""
    values: dict[str, Any]
    """What the run changes in the sweep's base."""
    sets: tuple[str, ...] = ()
    """What the command line of the sweep changes in it."""
    sample: bool = False
    pause: Pause | None = None
    sweeper: str = ""
    """Who starts it."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables, such as the accelerators that it may use."""

    def request(self, base: str, folder: str, has_begun: bool) -> Request:
        """Return the request that starts the run, or resumes it where it has begun."""
        if has_begun:
            return Request("resume", folder, pause=self.pause)
        sets = (*self.sets, *as_assignments(self.values))
        continues = True  # a process that was killed while it prepared has left the folder
        return Request("train", base, sets, folder, self.sample, (), continues, self.pause, self.copy_of)

    def to_json(self) -> str:
        """Return the order as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Order:
        """Make the order that `to_json` returned."""
        pause = Pause.from_json(values["pause"]) if values["pause"] else None
        return cls(**{**values, "sets": tuple(values["sets"]), "pause": pause})
