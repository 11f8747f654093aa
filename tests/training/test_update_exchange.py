"""Processes wait for no small exchange in an update, and weights that nobody uses are an error or allowed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.processruns import run_module


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return run_module("tests.support.exchange_process")


def test_an_update_waits_for_no_small_exchange(found: dict[str, Any]) -> None:
    """Loss, requests and the next update's counts go in one exchange, in the background of the backward pass."""
    assert found["exchanges"]["small, in the background"] == 8  # one for each of the updates 3 to 10
    assert not [kind for kind in found["exchanges"] if "waiting" in kind]


@pytest.mark.parametrize("case", ["never", "not in the last"])
def test_a_weight_without_gradient_is_refused_before_the_first_update(case: str, found: dict[str, Any]) -> None:
    """torch's wrapper notices only in the second update, after the first was taken with gradients of one process."""
    for step, message, _ in found[case]:
        assert step == 0
        assert message.startswith("not all weights got a gradient in update 1: ")
        assert "[launch].unused_weights = true" in message
    if case == "never":
        assert "rare.weight, rare.bias got none" in found[case][0][1]


def test_weights_may_be_unused_where_the_spec_says_so(found: dict[str, Any]) -> None:
    (first, _, weights), (second, _, others) = found["allowed"]
    assert (first, second) == (10, 10)
    assert weights == others
