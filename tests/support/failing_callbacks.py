"""A callback that raises at a chosen place."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import override

from taskrecipe import Callback, Control, Event, Listener

PLACES = ("start", "update", "evaluate", "save", "close")


class Failing(Callback):
    """Raises at a chosen event, or when it is closed."""

    place: Literal["start", "update", "evaluate", "save", "close"] = Field(description="Where it raises.")

    @override
    def build(self) -> Listener:
        return _Failing(self.place)


class _Failing(Listener):
    def __init__(self, place: str) -> None:
        self.place = place

    @override
    def on_event(self, event: Event, control: Control) -> None:
        if event.name == self.place and (event.name != "update" or event.step == 2):
            raise ValueError(f"at {self.place}")

    @override
    def close(self) -> None:
        if self.place == "close":
            raise ValueError("at close")
