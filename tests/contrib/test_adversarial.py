"""Adversarial training moves embeddings by a known length, row by row, and leaves everything else alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.support.loops import evaluated, gradients
from tests.support.techniqueruns import ready_with, technique_loop, technique_spec
from tests.support.textruns import Ready

from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.spec import Spec


def spec_of(options: dict[str, Any] | None = None, **train: Any) -> Spec:
    table = {"name": "adversarial", **(options or {})}
    return technique_spec(table, train={"epochs": 1, "batch_size": 8, **train})


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready_with(spec_of(), rows=19)


@contextmanager
def seen_embeddings(module):
    seen = []
    hook = module.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    try:
        yield seen
    finally:
        hook.remove()


def losses(few: Ready, **options: Any):
    """The loss of one batch, what the model saw at each forward pass, the loop, and the batch."""
    loop = technique_loop(few, spec_of(options))
    loop.model.train()
    batch = next(loop.state.updates(0)).batches[0].inputs
    with seen_embeddings(loop.state.module) as seen:
        computed = loop.objective.compute(loop.model, batch)
    return computed, seen, loop, batch


def test_each_row_is_moved_by_epsilon_up_its_own_loss(few):
    loss, seen, loop, batch = losses(few, epsilon=0.01, weight=1.0)
    plain, moved = seen
    lengths = (moved - plain).flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.01), rtol=1e-6, atol=0)
    assert loss.terms["loss_adversarial"] > loss.terms["loss"]
    # For so small a move, the loss grows by the gradient's length times the move's.
    embeddings = loop.state.module.bert.embeddings.word_embeddings(batch["input_ids"]).detach().requires_grad_()
    inputs = {key: value for key, value in batch.items() if key != "input_ids"}
    own = loop.state.module(inputs_embeds=embeddings, **inputs).loss
    (slope,) = torch.autograd.grad(own, embeddings)
    grown = float(slope.flatten(1).norm(dim=1).sum() * 0.01)
    difference = (loss.terms["loss_adversarial"] - loss.terms["loss"]).item()
    assert difference == pytest.approx(grown, rel=0.05)


def test_pgd_takes_its_steps_and_stays_within_epsilon(few):
    loss, seen, *_ = losses(few, method="pgd", epsilon=0.025, steps=4, step_size=0.01)
    assert len(seen) == 5
    lengths = [float((moved - seen[0]).flatten(1).norm(dim=1).max()) for moved in seen]
    assert lengths == pytest.approx([0.0, 0.01, 0.02, 0.025, 0.025], rel=0.02)
    assert loss.terms["loss_adversarial"] > loss.terms["loss"]


def test_weight_is_what_the_adversarial_term_counts(few):
    once, twice = (losses(few, epsilon=0.05, weight=weight)[0].terms for weight in (1.0, 2.0))
    torch.testing.assert_close(twice["loss_adversarial"], 2 * once["loss_adversarial"])
    torch.testing.assert_close(twice["loss"], once["loss"])


@pytest.mark.parametrize("options", [{"epsilon": 0.05}, {"method": "pgd", "epsilon": 0.05, "step_size": 0.03}])
def test_accumulation_gives_the_gradients_of_one_batch(few, options):
    for update in (0, 2):  # the last has 3 rows, which no number of micro-batches shares evenly
        whole, *others = (
            gradients(technique_loop(few, spec_of(options, accumulate=accumulate)), update) for accumulate in (1, 2, 4)
        )
        for split in others:
            assert max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)) < 1e-12


def test_no_weight_moves_and_evaluation_is_the_recipes_own(few):
    _, _, loop, _ = losses(few)
    before = technique_loop(few).state.module.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in loop.state.module.state_dict().items())
    with seen_embeddings(loop.state.module) as seen:
        found = evaluated(loop)
    assert len(seen) == sum(evaluation.batches for evaluation in loop.evaluations)
    assert found == evaluated(few.loop())


def test_frozen_embeddings_are_moved_too(few):
    spec = technique_spec({"name": "freeze", "layers": 0}, {"name": "adversarial", "epsilon": 0.01})
    with pytest.warns(UserWarning, match="freeze"):
        loop = technique_loop(few, spec)
    loop.model.train()
    batch = next(loop.state.updates(0)).batches[0].inputs
    with seen_embeddings(loop.state.module) as seen:
        terms = loop.objective.compute(loop.model, batch).terms
    assert not torch.equal(*seen)
    assert terms["loss_adversarial"] > terms["loss"]
    terms["loss_adversarial"].backward()
    assert loop.state.module.bert.embeddings.word_embeddings.weight.grad is None


def test_options_that_would_do_nothing_are_refused():
    with pytest.raises(ValueError, match="'steps' and 'step_size' are for method"):
        spec_of({"steps": 3})


def test_a_model_that_embeds_no_tokens_is_refused(few):
    (technique,) = spec_of().techniques
    with pytest.raises(UsageError, match="adversarial is for recipes on text: the model of 'glue' embeds no tokens"):
        technique.build(few.recipe, few.source).change_model(torch.nn.Linear(2, 2))


def objections(spec: Spec) -> dict[str, str]:
    return spec.techniques[0].objections(installed().recipe(spec.recipe)(spec))


def test_compiled_models_are_refused():
    assert "embeddings" in objections(spec_of(compile=True))["train.compile"]
    assert objections(spec_of()) == {}


def test_it_can_be_used_only_once():
    table = {"name": "adversarial"}
    assert "only once" in objections(technique_spec(table, table))["name"]
