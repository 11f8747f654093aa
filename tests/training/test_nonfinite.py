"""Where the optimizer skips a bad step on the device, the loop waits for the device at logged updates only."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from tests.support.loops import weights
from tests.support.toyruns import run_to_end, toy_loop, toy_spec, updates

from taskrecipe.errors import NonFiniteError
from taskrecipe.training import nonfinite
from taskrecipe.training.events import Updated
from taskrecipe.training.loop import Loop

BAD = 6
"""The number of the bad update, counted from 0."""


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A loop of 20 updates that treats the CPU like an accelerator; fused AdamW skips steps there too."""
    monkeypatch.setattr(nonfinite.NonFiniteGuard, "skips_on_device", lambda self, bad: True)
    tables = {"train": {"epochs": 4, "order": "sequential"}, "log": {"every": 10}}
    loop = toy_loop(toy_spec(**tables, evaluate={"every": "end"}, checkpoint={"every": "end"}))
    assert loop.guard.can_skip
    return loop


def _poison(loop: Loop) -> None:
    original = loop.objective.recipe.loss

    def loss(outputs, batch, training):
        factor = math.nan if training and loop.progress.step == BAD else 1.0
        return {name: term * factor for name, term in original(outputs, batch, training).items()}

    loop.objective.recipe.loss = loss


def test_numbers_are_read_once_for_each_logged_update(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    real, read_at = nonfinite.read_numbers, []

    def read(*tensors: torch.Tensor) -> list[float]:
        read_at.append(loop.progress.step)
        return real(*tensors)

    monkeypatch.setattr(nonfinite, "read_numbers", read)
    events = updates(run_to_end(loop))
    assert len(events) == 20
    assert read_at == [event.step for event in events if event.logged] == [1, 10, 20]


def test_a_bad_update_never_reaches_the_weights(loop: Loop) -> None:
    _poison(loop)
    after = [weights(loop)]
    with pytest.raises(NonFiniteError, match=r"update 7: the loss is nan .* Rows in it: 8, 9, 10, 11, 12, 13, 14, 15$"):
        after.extend(weights(loop) for event in loop.run() if isinstance(event, Updated))
    changed = [any(not torch.equal(old[name], value) for name, value in new.items()) for old, new in pairwise(after)]
    assert changed == [True] * BAD + [False] + [True] * 2  # it was found out at update 10, which was to be logged
    assert all(torch.isfinite(value).all() for value in weights(loop).values())


def test_a_bad_update_before_an_evaluation_is_found_before_it(loop: Loop) -> None:
    _poison(loop)
    loop.spec = toy_spec(train={"epochs": 4}, evaluate={"every": BAD + 1}, log={"every": 10})
    with pytest.raises(NonFiniteError, match="update 7"):
        run_to_end(loop)
    assert loop.progress.evaluated == 0
