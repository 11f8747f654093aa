"""Cheaper arithmetic and cheaper memory change what a run costs, not what it learns."""

from __future__ import annotations

import shutil

import pytest
import torch
from accelerate import Accelerator
from tests.support.loops import interrupted, weights
from tests.support.textruns import ready, text_spec
from tests.support.toyruns import run_to_end, toy_loop, toy_spec, updates
from tests.support.toys import Tag, tag_rows

from taskrecipe.errors import UsageError
from taskrecipe.system.python_warnings import collect_warnings
from taskrecipe.training import precision
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_accelerator, make_loop


def glue_loop(**train: object) -> Loop:
    """Two updates of a tiny BERT in evaluation's arithmetic, with the same weights every time."""
    spec = text_spec("glue", {"name": "mrpc"}, train={"updates": 2, "batch_size": 4, "learning_rate": 1e-3, **train})
    run = ready(spec, rows=8)
    torch.manual_seed(0)
    module = run.recipe.load_model(run.source)
    accelerator = make_accelerator(spec)
    loop = make_loop(run.recipe, module, run.rows, accelerator)
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
    assert {parameter.dtype for parameter in loop.state.module.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", ["fp16", "fp8"])
def test_what_the_hardware_cannot_do_is_refused(kind: str) -> None:
    spec = toy_spec(train={"precision": kind}, launch={"device": "cpu"})
    with pytest.raises(UsageError, match=rf"\[train\]\.precision = '{kind}' needs an accelerator.*'bf16' or 'no'"):
        make_accelerator(spec)


def test_gradient_checkpointing_changes_no_number() -> None:
    loop = glue_loop(gradient_checkpointing=True)
    assert loop.state.module.is_gradient_checkpointing
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


# float16 with its loss scale. Accelerate refuses it on a CPU; torch has both there, enough to test the loop's part.


def scaled_loop(scale: float, **train: object) -> Loop:
    """The toy recipe in float16. The loss scale is lowered after an overflow and raised after 3 good updates."""
    spec = toy_spec(task={"dropout": 0.2}, train={"batch_size": 8, **train}, checkpoint={"every": 1})
    accelerator = Accelerator(cpu=True)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    recipe = Tag(spec)
    torch.manual_seed(0)
    splits = {"train": tag_rows(37), "validation": tag_rows(21, seed=1)}
    return make_loop(recipe, recipe.load_model(None), splits, accelerator)


def test_a_step_that_overflows_is_skipped_and_the_scale_is_lowered() -> None:
    loop = scaled_loop(2.0**60)
    loop.model.train()
    before, start = weights(loop), loop.state.scaler.get_scale()
    updates_of_run = loop.state.updates(0)
    loop.take(next(updates_of_run))
    assert all(torch.equal(value, before[name]) for name, value in weights(loop).items())
    assert loop.state.scaler.get_scale() == start / 2
    kept = [value for state in loop.state.optimizer.optimizer.state.values() for value in state.values()]
    assert not any(value.any() for value in kept)  # no count of steps and no moments


def test_with_a_fitting_scale_training_goes_on_as_in_whole_precision() -> None:
    half, whole = scaled_loop(2.0**10), toy_loop(toy_spec(task={"dropout": 0.2}, train={"batch_size": 8}))
    assert losses(half) == pytest.approx(losses(whole), abs=0.02)
    assert half.state.scaler.get_scale() > 2.0**10  # raised after a while
    assert {parameter.dtype for parameter in half.state.module.parameters()} == {torch.float32}


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_run_with_a_loss_scale_is_resumed_exactly(after: int) -> None:
    whole = scaled_loop(2.0**18)
    list(whole.run())
    resumed = interrupted(scaled_loop(2.0**18), scaled_loop(2.0**3), after)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())
    assert whole.state.scaler.state_dict() == resumed.state.scaler.state_dict()


@pytest.mark.parametrize(("has_instructions", "warnings"), [(True, 0), (False, 1)])
def test_emulated_bf16_is_named(has_instructions: bool, warnings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: has_instructions)
    with collect_warnings() as found:
        precision.warn_of_precision("bf16", torch.device("cpu"))
        precision.warn_of_precision("no", torch.device("cpu"))
        precision.warn_of_precision("bf16", torch.device("meta"))
    assert len(found) == warnings
    assert all("emulated" in message for message in found)


def test_fp8_is_said_to_be_untested() -> None:
    with pytest.warns(UserWarning, match="fp8.*has not been tested"):
        precision.warn_of_precision("fp8", torch.device("meta"))
