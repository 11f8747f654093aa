"""The order of rows is a function of seed and epoch, and an update number is all the position there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrecipe.training.order import Order, evaluation_batches, split_evenly

KINDS = ["shuffled", "bucketed", "sequential"]

orders = st.builds(
    lambda size, batch, seed, kind: Order(size, batch, seed, kind, lengths=[(i * 7) % 13 for i in range(size)]),
    st.integers(1, 200),
    st.integers(1, 33),
    st.integers(0, 2**31 - 1),
    st.sampled_from(KINDS),
)


@given(orders, st.integers(0, 5))
def test_an_epoch_holds_every_row_once(order: Order, epoch: int) -> None:
    rows = np.concatenate(order.epoch(epoch))
    assert sorted(rows.tolist()) == list(range(order.size))


@given(orders, st.integers(0, 50))
def test_the_tail_from_any_position_is_the_tail_of_the_whole(order: Order, start: int) -> None:
    end = 3 * order.updates_per_epoch
    again = Order(order.size, order.batch_size, order.seed, order.kind, order.lengths)
    whole = [order.rows(update).tolist() for update in range(end)]
    assert [again.rows(update).tolist() for update in range(min(start, end), end)] == whole[start:]


@given(orders)
def test_only_one_update_of_an_epoch_is_short(order: Order) -> None:
    sizes = [len(update) for update in order.epoch(0)]
    assert len(sizes) == order.updates_per_epoch
    assert sum(size < order.batch_size for size in sizes) <= 1


@given(st.integers(1, 40), st.integers(1, 12))
def test_split_rows_are_all_rows_in_their_order(size: int, parts: int) -> None:
    pieces = split_evenly(np.arange(size), parts)
    assert len(pieces) == parts
    assert np.concatenate(pieces).tolist() == list(range(size))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_epochs_and_seeds_differ() -> None:
    def first(seed: int, epoch: int) -> list[int]:
        return Order(100, 10, seed).epoch(epoch)[0].tolist()

    assert len({tuple(first(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_buckets_keep_like_lengths_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 2000)

    def waste(kind: str) -> float:
        updates = Order(2000, 16, 1, kind, lengths.tolist()).epoch(0)
        return sum(lengths[rows].max() * len(rows) for rows in updates) / lengths.sum()

    assert waste("bucketed") < 1.1 < 1.6 < waste("shuffled")


def test_bucketed_needs_lengths() -> None:
    with pytest.raises(ValueError, match="lengths"):
        Order(10, 2, 1, "bucketed").epoch(0)


def test_a_drawn_epoch_is_drawn_anew_each_time() -> None:
    order = Order(10, 4, 1, "sequential", draw=lambda random: random.integers(0, 10, 6))
    assert order.updates_per_epoch == 2
    epochs = [np.concatenate(order.epoch(epoch)).tolist() for epoch in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1]


@given(st.integers(1, 70), st.integers(1, 9))
def test_evaluation_sees_every_row_once(size: int, batch_size: int) -> None:
    batches = evaluation_batches(size, batch_size, [i % 5 for i in range(size)])
    assert sorted(np.concatenate(batches).tolist()) == list(range(size))
