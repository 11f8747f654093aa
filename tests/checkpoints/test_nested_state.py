from __future__ import annotations

import json
import math
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpointing import store
from tests.support.nestings import same

from taskrecipe.checkpoints.nested_state import keepable, pack_state, unpack_state
from taskrecipe.errors import PluginError

shapes = st.lists(st.integers(0, 3), max_size=3)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
tensors = st.builds(lambda shape, dtype: torch.randint(0, 2, shape).to(dtype), shapes, dtypes)
strided = st.builds(
    lambda tensor, transposed: tensor.t() if transposed else tensor[:, :2],
    st.builds(lambda rows, columns: torch.rand(rows, columns), st.integers(2, 4), st.integers(3, 5)),
    st.booleans(),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.tuples(inner, inner),
    max_leaves=3,
)
states = st.recursive(
    scalars | tensors | strided,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=15,
)


def _through_disk(folder: Path, state: Any) -> Any:
    found, skeleton = pack_state(state)
    text = json.dumps(skeleton, allow_nan=False).encode()
    committed = store(folder).commit(1, {"optimizer.safetensors": found, "state.json": text}, best=None)
    return unpack_state(committed.tensors("optimizer.safetensors"), committed.json("state.json"))


@settings(max_examples=40, deadline=None)
@given(states)
def test_any_nesting_of_plain_values_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, state: Any):
    assert same(_through_disk(tmp_path_factory.mktemp("run"), state), state)


def test_names_that_would_be_the_same_are_told_apart():
    one, two, three, four = (torch.tensor(float(number)) for number in range(4))
    state = {"a/b": one, "a": {"b": two}, 0: three, "0": four, "__metadata__": one, "\ud800": two}
    found, skeleton = pack_state(state)
    assert len(found) == 4
    assert same(unpack_state(found, json.loads(json.dumps(skeleton))), state)


def test_a_tensor_that_is_in_two_places_stays_one():
    shared = torch.ones(3)
    found, skeleton = pack_state({"a": [shared], "b": shared})
    back = unpack_state(found, skeleton)
    assert len(found) == 1
    assert back["a"][0] is back["b"]


def test_numbers_keep_every_bit():
    odd = [0.1 + 0.2, -0.0, 5e-324, math.inf, -math.inf, 2**100, -1]
    found, skeleton = pack_state(odd)
    assert same(unpack_state(found, json.loads(json.dumps(skeleton, allow_nan=False))), odd)


class Projector:
    def __init__(self, rank: int) -> None:
        raise AssertionError("a checkpoint calls no code of a class it keeps")


Point = namedtuple("Point", "x")


@pytest.mark.parametrize("value", [object(), {1}, 1j, b"bytes", torch.float32, len, Point(1), range(3)])
def test_anything_else_is_refused_with_its_place_and_type(value: Any):
    with pytest.raises(PluginError, match=rf"state/0/odd, which is a .*{type(value).__name__}.*keepable"):
        pack_state({"state": {0: {"odd": value}}})


def test_a_registered_class_is_kept_by_its_attributes(tmp_path: Path):
    kept = keepable(Projector)
    one = object.__new__(kept)
    vars(one).update(rank=4, matrix=torch.rand(4, 5).t(), seeds=(1, None))
    back = _through_disk(tmp_path, {"projector": one})["projector"]
    assert type(back) is Projector
    assert same(vars(back), vars(one))


def test_a_class_that_a_file_names_is_not_imported():
    with pytest.raises(PluginError, match=r"has a os\._wrap_close, which is not registered"):
        unpack_state({}, {"object": ["os._wrap_close", {"dict": []}]})


def test_a_class_of_the_same_name_is_not_taken_for_the_registered_one():
    class Kept:
        pass

    impostor = type("Kept", (), {"__module__": Kept.__module__, "__qualname__": Kept.__qualname__})
    keepable(Kept)
    with pytest.raises(PluginError):
        pack_state(impostor())


# Real optimizers ----------------------------------------------------------------------------------------


def _adamw(weights: torch.nn.Parameter, bias: torch.nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{"params": [weights]}, {"params": [bias], "weight_decay": 0.0}], lr=0.1, amsgrad=True)


def _adafactor(weights: torch.nn.Parameter, bias: torch.nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.Adafactor([weights, bias], lr=0.1)


def _schedule_free(weights: torch.nn.Parameter, bias: torch.nn.Parameter) -> torch.optim.Optimizer:
    optimizer = pytest.importorskip("schedulefree").AdamWScheduleFree([weights, bias], lr=0.1)
    optimizer.train()
    return optimizer


def _galore(weights: torch.nn.Parameter, bias: torch.nn.Parameter) -> torch.optim.Optimizer:
    galore = pytest.importorskip("galore_torch")
    keepable(galore.galore_projector.GaLoreProjector)
    options = {"rank": 2, "update_proj_gap": 3, "scale": 0.25, "proj_type": "std"}
    groups = [{"params": [bias]}, {"params": [weights], **options}]
    return galore.GaLoreAdamW(groups, lr=0.1, no_deprecation_warning=True)


def _apollo(weights: torch.nn.Parameter, bias: torch.nn.Parameter) -> torch.optim.Optimizer:
    apollo = pytest.importorskip("apollo_torch")
    keepable(apollo.random_projector.GradientProjector)
    options = {"rank": 2, "update_proj_gap": 3, "scale": 1.0, "proj_type": "std", "proj": "random"}
    groups = [{"params": [bias]}, {"params": [weights], **options, "scale_type": "channel"}]
    return apollo.APOLLOAdamW(groups, lr=0.1)


Build = Callable[[torch.nn.Parameter, torch.nn.Parameter], torch.optim.Optimizer]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("build", [_adamw, _adafactor, _schedule_free, _galore, _apollo])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_an_optimizer_goes_on_to_the_bit(tmp_path: Path, build: Build, shape: tuple[int, int]):
    parameters = _parameters(shape)
    optimizer = build(*parameters)
    for step in range(4):
        _update(optimizer, parameters, step)
    state = _through_disk(tmp_path, optimizer.state_dict())
    assert _kinds(state) == _kinds(optimizer.state_dict())
    copies = tuple(torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters)
    resumed = build(*copies)  # type: ignore[arg-type]
    resumed.load_state_dict(state)
    for step in range(4, 9):
        _update(optimizer, parameters, step)
        _update(resumed, copies, step)
    assert all(torch.equal(one, other) for one, other in zip(parameters, copies, strict=True))


def _parameters(shape: tuple[int, int]) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    torch.manual_seed(0)
    return torch.nn.Parameter(torch.randn(shape)), torch.nn.Parameter(torch.randn(shape[0]))


def _update(optimizer: torch.optim.Optimizer, parameters: tuple[torch.nn.Parameter, ...], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def _kinds(state: Any) -> Any:
    """The types in a state, however deep, with the strides of its tensors."""
    if isinstance(state, dict):
        return {key: _kinds(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_kinds(value) for value in state)
    if isinstance(state, torch.Tensor):
        return state.dtype, state.shape, state.stride()
    return (type(state), _kinds(vars(state))) if hasattr(state, "__dict__") else type(state)
