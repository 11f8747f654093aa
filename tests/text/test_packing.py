from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe.text import large_arrays
from taskrecipe.text import packing as tokens
from taskrecipe.text.packing import Ragged, make_dataset, pack_lengths

LISTS = st.lists(st.lists(st.integers(0, 99), max_size=20), max_size=20)
FILLED = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=20), max_size=20)


@pytest.fixture(autouse=True, scope="module", params=["in memory", "in files, block by block"])
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What many tokens go through must give what few tokens do."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "in memory":
            patch.setenv("TASKRECIPE_CACHE", str(tmp_path_factory.mktemp("cache")))
            patch.setattr(tokens, "VALUES_PER_BLOCK", 7)
            patch.setattr(large_arrays, "IN_MEMORY", 0)
        yield


def lists_of(ragged: Ragged) -> list[list[int]]:
    return [
        ragged.values[start:end].tolist() for start, end in zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)
    ]


@settings(deadline=None)
@given(LISTS, st.integers(1, 9))
def test_chunks_are_the_whole_text_in_order_and_all_but_the_last_are_full(lists, length):
    chunks = lists_of(Ragged.of(lists).chunks(length))
    assert list(chain(*chunks)) == list(chain(*lists))
    assert all(len(chunk) == length for chunk in chunks[:-1])


@settings(deadline=None)
@given(LISTS, st.integers(3, 9))
def test_pieces_never_hold_tokens_of_two_documents_nor_one_alone_of_many(lists, length):
    expected = []
    for one in lists:
        pieces = [one[i : i + length] for i in range(0, len(one), length)]
        if len(pieces) > 1 and len(pieces[-1]) == 1:
            pieces[-2:] = [pieces[-2][:-1], pieces[-2][-1:] + pieces[-1]]
        expected += pieces
    assert lists_of(Ragged.of(lists).pieces(length)) == expected


@settings(deadline=None)
@given(LISTS, st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(0, 9), max_size=3))
def test_wrapping_puts_tokens_around_every_list(lists, before, after):
    assert lists_of(Ragged.of(lists).wrap(before, after)) == [before + one + after for one in lists]


@settings(deadline=None)
@given(FILLED)
def test_positions_count_from_zero_in_every_list(lists):
    assert lists_of(Ragged.of(lists).positions()) == [list(range(len(one))) for one in lists]


@settings(deadline=None)
@given(LISTS, st.data())
def test_keep_and_take_choose_lists(lists, data):
    ragged = Ragged.of(lists)
    mask = data.draw(st.lists(st.booleans(), min_size=len(lists), max_size=len(lists)))
    order = data.draw(st.permutations(range(len(lists))))
    assert lists_of(ragged.keep(np.array(mask, dtype=bool))) == [
        one for one, kept in zip(lists, mask, strict=True) if kept
    ]
    assert lists_of(ragged.take(order)) == [lists[i] for i in order]


@settings(deadline=None)
@given(st.lists(st.integers(1, 16), max_size=60))
def test_packs_hold_every_piece_once_and_never_too_much(lengths):
    packs = pack_lengths(np.array(lengths, dtype=np.int64), 16)
    assert sorted(chain(*packs)) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in members) for members in packs]
    assert all(load <= 16 for load in loads)
    # Best fit leaves no two packs that one would hold.
    assert sum(load <= 8 for load in loads) <= 1


def test_packing_fills_rows():
    lengths = np.random.default_rng(0).integers(1, 65, 2000)
    assert len(pack_lengths(lengths, 64)) <= 1.02 * lengths.sum() / 64


@settings(deadline=None)
@given(LISTS)
def test_rows_hold_the_lists_and_give_them_back(lists):
    rows = make_dataset({"input_ids": Ragged.of(lists)})
    assert rows["input_ids"][:] == lists
    if len(lists) > 1:
        assert lists_of(Ragged.column(rows, "input_ids")) == lists
        assert lists_of(Ragged.column(rows.select(range(1, len(lists))), "input_ids")) == lists[1:]


def test_rows_are_not_hashed_to_name_them(monkeypatch: pytest.MonkeyPatch):
    """Hashing reads the whole table, which takes longer than making it."""

    def fail(*_args: object) -> str:
        raise AssertionError("the table is hashed")

    monkeypatch.setattr("datasets.arrow_dataset.generate_fingerprint", fail)
    one, other = (make_dataset({"input_ids": Ragged.of([[1, 2], [3]])}) for _ in range(2))
    assert one._fingerprint != other._fingerprint


def test_rows_beyond_one_arrow_block(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "ROWS_PER_BLOCK", 3)
    lists = [[i] * (i % 4 + 1) for i in range(10)]
    assert [list(row["input_ids"]) for row in make_dataset({"input_ids": Ragged.of(lists)})] == lists
