"""A line of the log says all of an event."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from taskrecipe.training import events
from taskrecipe.training.events import Event, read_event

KINDS = [
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]

numbers = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, numbers)


@given(st.one_of([st.from_type(kind) for kind in KINDS]))
def test_an_event_can_be_read_from_its_record(event: Event) -> None:
    assert read_event(event.record()) == event
    assert read_event(json.loads(json.dumps(event.record()))) == event


def test_every_kind_has_a_name_of_its_own() -> None:
    assert len(KINDS) == 15
    assert len({kind.name for kind in KINDS}) == len(KINDS)
