"""`accumulate = "auto"`: an update that runs out of memory is cut finer and taken again, and nothing else changes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tests.support.loops import interrupted, weights
from tests.support.processruns import run_module
from tests.support.toyruns import toy_loop, toy_spec
from tests.support.toys import Tag, tag_rows

from taskrecipe.errors import RunStopped
from taskrecipe.plugins.registry import installed
from taskrecipe.testing.subject import Subject
from taskrecipe.training import micro_batches
from taskrecipe.training.events import Updated, Warned
from taskrecipe.training.loop import Loop
from taskrecipe.training.micro_batches import Cut, compute_within_memory, is_out_of_memory
from taskrecipe.training.setup import make_loop


def limit_rows(loop: Loop, most: int, error: type[Exception] | None = None) -> list[int]:
    """Let training run out of memory above `most` rows; the list of how many rows each failed batch had."""
    recipe, failures = loop.objective.recipe, []
    forward = recipe.forward

    def forward_within(model: Any, batch: Any) -> Any:
        rows = len(next(iter(batch.values())))
        if model.training and rows > most:
            failures.append(rows)
            raise (error or torch.OutOfMemoryError)(f"CUDA out of memory: {rows} rows")
        return forward(model, batch)

    recipe.forward = forward_within  # type: ignore[method-assign]
    return failures


def toy(accumulate: Any, dropout: str = "by_row", workers: int = 0, rows: int = 37, **train: Any) -> Loop:
    train = {"accumulate": accumulate, "batch_size": 16, "dropout": dropout, **train}
    spec = toy_spec(task={"dropout": 0.3, "noise": True}, train=train, data={"workers": workers})
    return toy_loop(spec, rows)


def same(one: Loop, other: Loop) -> bool:
    expected = weights(one)
    return all(torch.equal(value, expected[name]) for name, value in weights(other).items())


@pytest.mark.parametrize(
    ("most", "parts", "dropout"),
    [(1, 16, "by_row"), (3, 8, "torch"), (5, 4, "by_row"), (15, 2, "torch"), (16, 1, "by_row")],
)
def test_a_run_that_is_short_of_memory_ends_in_the_bits_of_the_fixed_setting(most, parts, dropout) -> None:
    fixed, auto = toy(parts, dropout), toy("auto", dropout)
    failures = limit_rows(auto, most)
    list(fixed.run())
    events = list(auto.run())
    assert same(fixed, auto)
    assert fixed.progress.metrics == auto.progress.metrics
    assert auto.state.updates.cut.parts == parts
    assert failures == [16 >> n for n in range(len(failures))]  # found out in the first update, and kept
    assert len([event for event in events if isinstance(event, Warned)]) == (parts > 1)


def test_a_stream_is_cut_again_too() -> None:
    loops = []
    for accumulate in (4, "auto"):
        spec = toy_spec(train={"accumulate": accumulate, "batch_size": 16, "updates": 4}, data={"streaming": True})
        recipe = Tag(spec)
        torch.manual_seed(0)
        splits = {"train": tag_rows(37).to_iterable_dataset(), "validation": tag_rows(5)}
        loops.append(make_loop(recipe, recipe.load_model(None), splits, Accelerator(cpu=True)))
    assert limit_rows(loops[1], 4) == []
    for loop in loops:
        list(loop.run())
    assert same(*loops)
    assert loops[1].state.updates.state()["cut"]["parts"] == 4


def test_batches_that_workers_have_cut_already_are_cut_again() -> None:
    fixed, auto = toy(4), toy("auto", workers=2)
    limit_rows(auto, 4)
    list(fixed.run())
    list(auto.run())
    assert same(fixed, auto)


@pytest.mark.parametrize("after", [1, 3])
def test_what_was_found_is_kept_for_a_resumed_run(after: int) -> None:
    whole, first, again = (toy("auto") for _ in range(3))
    failures = [limit_rows(loop, 4) for loop in (whole, first, again)]
    list(whole.run())
    resumed = interrupted(first, again, after)
    assert same(whole, resumed)
    assert failures == [[16, 8], [16, 8], []]


def test_a_coarser_cut_is_tried_after_a_while_and_less_often_if_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "WAIT", 2)
    loop = toy("auto", rows=48, epochs=3)
    limit_rows(loop, 8)
    cut, parts = loop.state.updates.cut, []
    for event in loop.run():
        if isinstance(event, Updated):
            parts.append(cut.parts)
    # Fits at 2, is tried at 1 after two updates (fails, waits four), and so on.
    assert parts[:8] == [2, 1, 2, 2, 2, 1, 2, 2]
    assert cut.wait == 8
    roomy = toy("auto", rows=48, epochs=3)
    roomy.state.updates.cut.parts = 4
    list(roomy.run())
    assert roomy.state.updates.cut.parts == 1


def test_one_row_that_does_not_fit_ends_the_run() -> None:
    loop = toy("auto")
    limit_rows(loop, 0)
    with pytest.raises(RunStopped, match="even with micro-batches of one row: CUDA out of memory: 1 row"):
        list(loop.run())


def test_other_errors_are_not_caught() -> None:
    loop = toy("auto")
    failures = limit_rows(loop, 8, ValueError)
    with pytest.raises(ValueError, match="16 rows"):
        list(loop.run())
    assert failures == [16]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("MPS backend out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_a_failed_attempt_leaves_no_trace_in_batch_norms() -> None:
    module, cut, attempts = torch.nn.BatchNorm1d(3), Cut("auto", 8), []

    def attempt() -> None:
        attempts.append(cut.parts)
        module(torch.arange(12.0).reshape(4, 3)).sum().backward()
        if len(attempts) < 3:
            raise MemoryError

    compute_within_memory(cut, module, attempt)
    assert attempts == [1, 2, 4]
    assert int(module.num_batches_tracked) == 1


PACKS = {"length": 64, "size": "tiny", "rows": "packs"}


@pytest.mark.parametrize(("recipe", "task"), [("detection", {"image_size": 64, "fit": "stretch"}), ("clm", PACKS)])
def test_boxes_and_packed_rows_are_cut_again_too(recipe: str, task: dict[str, Any], tmp_path: Path) -> None:
    subject = Subject(recipe, task, installed(), tmp_path)
    loops = [subject.loop(subject.few, train__batch_size=4, train__accumulate=cut) for cut in (4, "auto")]
    failures = limit_rows(loops[1], 1)
    for loop in loops:
        loop.model.train()
        for update in islice(loop.state.updates(0), 2):
            loop.take(update)
    assert failures == [4, 2]
    assert same(*loops)


def test_processes_agree_when_one_of_them_is_short_of_memory() -> None:
    found = run_module("tests.support.memory_process")
    assert found["auto"] == {**found["fixed"], "warnings": 1}  # to the bit
    assert found["auto"]["parts"] == [4, 4]
    assert found["roomy"] == found["whole"]


@pytest.mark.parametrize("shard", ["full", pytest.param("gradients", marks=pytest.mark.chaos)])
def test_processes_of_a_sharded_model_agree_wherever_one_is_short_of_memory(shard: str) -> None:
    """Before the model, in each block, in the loss and in each backward pass; some after gradients were added up."""
    runs = run_module("tests.support.shard_memory_process", shard)
    fixed, whole, roomy = (runs.pop(name) for name in ("fixed", "whole", "roomy"))
    assert roomy == whole
    assert len(runs) == 8
    for place, found in runs.items():
        assert found == {**fixed, "raised": [0, 2]}, place  # to the bit
