"""Dropout by row: masks are the same however an update is split, padded or packed, and differ where they should."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.support import dropout_process
from tests.support.dropouts import TASKS, difference, gradients, make_loop
from tests.support.languageruns import language_loop, language_spec
from tests.support.loops import interrupted, weights
from tests.support.processruns import run_module
from tests.support.toyruns import run_to_end, toy_loop, toy_spec

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


@pytest.mark.parametrize("case", TASKS)
def test_gradients_are_the_same_however_an_update_is_split(case: str) -> None:
    """In parts of a single row each has its own padding, so padding changes nothing either."""
    for dtype, tolerance in TOLERANCE.items():
        whole = gradients(make_loop(case, dtype))
        for parts in (2, 8):
            assert difference(whole, gradients(make_loop(case, dtype, train__accumulate=parts))) < tolerance


def test_torch_draws_other_masks_when_an_update_is_split() -> None:
    """So the tests above can fail."""
    loops = (make_loop("glue", train__dropout="torch", train__accumulate=parts) for parts in (1, 2))
    assert difference(*map(gradients, loops)) > 1e-4


@pytest.mark.parametrize("case", ["glue", "clm documents", "token_classification", "mlm"])
def test_padding_changes_nothing(case: str) -> None:
    loop = make_loop(case)
    expected = gradients(loop)
    recipe = loop.objective.recipe
    collate, fill = recipe.collate, {"attention_mask": 0, **recipe.padding()}

    def collate_wider(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = collate(rows)
        width = batch["input_ids"].shape[1]
        batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
        return {
            key: torch.nn.functional.pad(value, (0, 5), value=fill.get(key, 0))
            if value.ndim == 2 and value.shape[1] == width
            else value
            for key, value in batch.items()
        }

    recipe.collate = collate_wider
    assert difference(expected, gradients(loop)) < 1e-12


def test_a_document_in_a_pack_gets_the_masks_it_gets_alone() -> None:
    texts = [f"{'many words ' * (number % 5)}of document {number}" for number in range(12)]
    alone, packed = (
        language_loop(
            language_spec("clm", {"rows": rows, "length": 48}, train={"batch_size": 16, "order": "sequential"}),
            {"train": texts, "validation": texts},
            dropout=True,
        )
        for rows in ("documents", "packs")
    )
    assert len(packed.state.updates.rows) < len(alone.state.updates.rows) == 12
    alone.model.train(), packed.model.train()
    expected = gradients(alone)
    assert difference(expected, gradients(packed)) < 1e-12
    packed.objective.dropout.seed = 3
    assert difference(expected, gradients(packed)) > 1e-4


def test_updates_rows_and_seeds_have_masks_of_their_own() -> None:
    first = gradients(make_loop("glue"))
    loop = make_loop("glue")
    loop.objective.dropout.seed = 3
    assert difference(first, gradients(loop)) > 1e-4
    loop = make_loop("glue")
    update = next(loop.state.updates(0))
    update.number = 1
    update.compute_gradients()
    later = {name: p.grad for name, p in loop.state.module.named_parameters() if p.grad is not None}
    assert difference(first, later) > 1e-4


def test_the_two_texts_of_a_self_pair_get_different_masks() -> None:
    update = next((loop := make_loop("self-pairs")).state.updates(0))
    vectors = update.forward(update.batches[0])
    assert (vectors[:, 0] - vectors[:, 1]).abs().max() > 1e-3
    assert torch.equal(vectors, update.forward(update.batches[0]))
    loop.model.eval()
    vectors = update.forward(update.batches[0])
    assert torch.equal(vectors[:, 0], vectors[:, 1])


@pytest.mark.parametrize("case", ["glue", "clm packs", "seq2seq", "two_tower", "image_classification"])
def test_gradient_checkpointing_draws_the_same_masks(case: str) -> None:
    whole = gradients(make_loop(case))
    for parts in (1, 2):
        loop = make_loop(case, train__gradient_checkpointing=True, train__accumulate=parts)
        assert difference(whole, gradients(loop)) < 1e-12


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped() -> None:
    spec = toy_spec(task={"dropout": 0.3}, train={"accumulate": 2})
    whole = toy_loop(spec)
    run_to_end(whole)
    resumed = interrupted(toy_loop(spec), toy_loop(spec), after=3)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name])


def test_a_run_that_begins_to_drop_has_the_bits_of_one_that_is_watched_from_the_start() -> None:
    def train(may_rest: bool) -> tuple[list[bool], dict[str, torch.Tensor]]:
        loop = toy_loop(toy_spec(task={"dropout": 0.0}, train={"updates": 6, "accumulate": 2}))
        assert loop.objective.dropout.may_rest
        loop.objective.dropout.may_rest, resting = may_rest, []
        for event in loop.run():
            if event.step == 3:
                for part in loop.state.module.modules():
                    if isinstance(part, torch.nn.Dropout):
                        part.p = 0.3
            resting.append(loop.objective.dropout.is_resting)
        return resting, weights(loop)

    resting, found = train(may_rest=True)
    assert any(resting)
    assert not resting[-1]
    expected = train(may_rest=False)[1]
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_a_run_changes_no_generator_of_torch() -> None:
    loop = make_loop("glue")
    state = torch.get_rng_state()
    gradients(loop)
    assert torch.equal(state, torch.get_rng_state())


def test_two_processes_draw_the_masks_of_one() -> None:
    together, alone = run_module("tests.support.dropout_process"), dropout_process.all_gradients()
    for case, accumulate in itertools.product(dropout_process.CASES, (1, 2)):
        whole, split = alone[f"{case} in 1"], together[f"{case} in {accumulate}"]
        assert max(abs(a - b) for a, b in zip(whole, split, strict=True)) < 1e-12


@pytest.mark.chaos
@pytest.mark.filterwarnings("default")  # torch.compile calls what torch itself says is deprecated
def test_a_compiled_model_draws_the_same_masks() -> None:
    tables = {"task": {"dropout": 0.3}}
    plain = toy_loop(toy_spec(train={"updates": 3}, **tables))
    run_to_end(plain)
    compiled = toy_loop(toy_spec(train={"updates": 3, "compile": True}, **tables))
    run_to_end(compiled)
    for name, value in weights(plain).items():
        assert torch.allclose(value, weights(compiled)[name], atol=1e-5)
