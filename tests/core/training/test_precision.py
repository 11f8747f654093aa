"""Cheaper arithmetic and cheaper memory change what a run costs, not what it learns."""

from __future__ import annotations

import shutil

import pytest
import torch
from loops import weights
from textruns import ready, text_spec
from toyruns import run_to_end, toy_loop, toy_spec, updates

from taskrecipe.core.errors import UsageError
from taskrecipe.core.training.assembly import assemble, make_accelerator
from taskrecipe.core.training.loop import Loop


def glue_loop(**train: object) -> Loop:
    """Two updates of a tiny BERT in evaluation's arithmetic, with the same weights every time."""
    spec = text_spec("glue", {"name": "mrpc"}, train={"updates": 2, "batch_size": 4, "learning_rate": 1e-3, **train})
    run = ready(spec, rows=8)
    torch.manual_seed(0)
    module = run.recipe.load_model(run.source)
    accelerator = make_accelerator(spec)
    loop = assemble(run.recipe, module, run.rows, accelerator)
    loop.evaluations = []
    return loop


def losses(loop: Loop) -> list[float]:
    return [event.loss for event in updates(list(loop.run()))]


@pytest.fixture(autouse=True)
def _another_accelerator():
    """Accelerate keeps its precision for the whole process; let nobody else have this one."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_bf16_computes_in_half_precision_and_keeps_whole_weights() -> None:
    whole = losses(glue_loop())
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    loop = glue_loop(precision="bf16")
    half = losses(loop)
    assert half != whole
    assert half == pytest.approx(whole, abs=0.02)
    assert {parameter.dtype for parameter in loop.module.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
def test_what_the_hardware_cannot_do_is_refused(precision: str) -> None:
    spec = toy_spec(train={"precision": precision}, launch={"device": "cpu"})
    with pytest.raises(UsageError, match=rf"\[train\]\.precision = '{precision}' needs an accelerator.*'bf16' or 'no'"):
        make_accelerator(spec)


def test_gradient_checkpointing_changes_no_number() -> None:
    loop = glue_loop(gradient_checkpointing=True)
    assert loop.module.is_gradient_checkpointing
    assert losses(loop) == losses(glue_loop())


def test_a_model_without_gradient_checkpointing_says_so() -> None:
    with pytest.raises(UsageError, match="gradient_checkpointing = true, but this model"):
        toy_loop(toy_spec(train={"gradient_checkpointing": True}))


@pytest.mark.chaos
@pytest.mark.filterwarnings("default")  # torch.compile calls what torch itself says is deprecated
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_model_trains_the_same_weights() -> None:
    spec = toy_spec(train={"updates": 3})
    plain = toy_loop(spec)
    run_to_end(plain)
    compiled = toy_loop(toy_spec(train={"updates": 3, "compile": True}))
    run_to_end(compiled)
    assert weights(compiled).keys() == weights(plain).keys()
    for name, value in weights(plain).items():
        assert torch.allclose(value, weights(compiled)[name], atol=1e-5)
