"""Two processes compute what one computes: each row is measured once, and gradients are those of the whole update."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.support import toy_process
from tests.support.processruns import run_module
from tests.support.toys import tag_rows


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return json.loads(json.dumps(toy_process.everything()))


@pytest.fixture(scope="module")
def together() -> dict[str, Any]:
    return run_module("tests.support.toy_process")


def by_hand(count: int) -> list[list[int]]:
    """How many tags of each row are right, and how many there are, one row after another."""
    model = toy_process.toy_model().eval()
    found = []
    for row in tag_rows(count):
        labels = torch.tensor([row["labels"]])
        chosen = model(torch.tensor([row["input_ids"]]), labels).logits.argmax(-1)
        found.append([int(((chosen == labels) & (labels != -100)).sum()), int((labels != -100).sum())])
    return found


@pytest.mark.parametrize("count", toy_process.ROWS)
def test_every_row_is_measured_once(count: int, alone: dict[str, Any], together: dict[str, Any]) -> None:
    expected = by_hand(count)
    accuracy = sum(right for right, _ in expected) / sum(counted for _, counted in expected)
    for batch_size in toy_process.BATCH_SIZES:
        one, two = (found["evaluations"][f"{count} rows by {batch_size}"] for found in (alone, together))
        assert one[0] == two[0] == expected
        assert one[1] == two[1]  # to the bit
        assert one[1]["accuracy"] == accuracy


def test_gradients_are_those_of_the_whole_update(alone: dict[str, Any], together: dict[str, Any]) -> None:
    for number in (0, 4):
        whole = alone["gradients"][f"update {number} in 1"]
        for found in (alone, together):
            for accumulate in (1, 2, 4):
                split = found["gradients"][f"update {number} in {accumulate}"]
                assert max(abs(a - b) for a, b in zip(whole, split, strict=True)) < 1e-12


def test_all_refuse_an_update_whose_loss_is_infinite_in_one(alone: dict[str, Any], together: dict[str, Any]) -> None:
    assert len(alone["refusals"]) == 1
    assert together["refusals"] == alone["refusals"] * 2  # with the same words: they know of one another's loss
    assert alone["refusals"][0].startswith("update 1: the loss is inf at learning rate")


def test_values_are_exchanged_as_they_were_and_never_pickled(together: dict[str, Any]) -> None:
    assert together["exchanged"] == [[True, True], [True, True]]
