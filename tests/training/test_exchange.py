"""Processes exchange any nesting of plain values, arrays and tensors, and nothing of it is unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.nestings import same
from torch import distributed

from taskrecipe.training import exchange

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(
    lambda shape, dtype: torch.randint(0, 2, shape).to(dtype),
    shapes,
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
arrays = st.builds(
    lambda shape, dtype: np.random.default_rng(0).integers(0, 2, shape).astype(dtype),
    shapes,
    st.sampled_from(["float64", ">f4", "float16", "uint16", "bool", "<U5", "S3", "datetime64[s]"]),
)
rows_of_one = st.builds(lambda count: list(torch.arange(3 * count).reshape(count, 3)), st.integers(1, 3))
keys = st.text(max_size=5) | st.integers() | st.tuples(st.integers(), st.text(max_size=3))
values = st.recursive(
    scalars | tensors | arrays | rows_of_one,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@pytest.fixture(scope="class")
def group() -> Iterator[None]:
    """A group of this process alone, which exchanges as if there were others."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "has_peers", lambda: True)
        for name in ("load", "loads", "Unpickler"):
            patch.setattr(pickle, name, lambda *_, **__: pytest.fail("something was unpickled"))
        yield
    exchange._cpu_group.cache_clear()
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
class TestExchange:
    @settings(max_examples=200, deadline=None)
    @given(value=values)
    def test_any_nesting_is_gathered_as_it_was(self, value: Any) -> None:
        [gathered] = exchange.gather_values(value)
        assert same(gathered, value)

    @settings(max_examples=50, deadline=None)
    @given(value=json_values)
    def test_json_is_broadcast_as_it_was(self, value: Any) -> None:
        assert same(exchange.broadcast_json(value), value)

    def test_an_array_of_objects_is_refused(self) -> None:
        with pytest.raises(TypeError, match="can't exchange an array of object"):
            exchange.gather_values({"predictions": np.array([object()])})


def test_one_process_gets_its_own_value() -> None:
    value = {"any": object()}
    assert exchange.gather_values(value) == [value]
    assert exchange.broadcast_json(value) is value
