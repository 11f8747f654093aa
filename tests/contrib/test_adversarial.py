"""Adversarial training moves embeddings by a known length, row by row, and leaves everything else alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from loops import evaluated, gradients
from textruns import Ready, ready, text_spec

from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.testing import conformance

TASK = {"inner": {"recipe": "glue", "task": {"name": "mrpc"}}}

test_it_conforms = conformance("adversarial", **TASK)


def spec_of(task: dict[str, Any] | None = None, **train: Any) -> Spec:
    return text_spec("adversarial", {**TASK, **(task or {})}, train={"epochs": 1, "batch_size": 8, **train})


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready(spec_of(), rows=19)


def with_options(few: Ready, **task: Any) -> Ready:
    spec = spec_of(task)
    recipe = type(few.recipe)(spec)
    recipe.inner = few.recipe.inner
    return Ready(recipe, few.rows, few.source)


@contextmanager
def seen_embeddings(module):
    seen = []
    hook = module.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    try:
        yield seen
    finally:
        hook.remove()


def losses(few: Ready):
    """The loss of one batch, what the model saw at each forward pass, and the loop."""
    loop = few.loop()
    loop.model.train()
    batch = next(loop.updates(0)).batches[0].inputs
    with seen_embeddings(loop.module) as seen:
        loss = loop.recipe.loss(loop.model, batch)
    return loss, seen, loop, batch


def test_each_row_is_moved_by_epsilon_up_its_own_loss(few):
    loss, seen, loop, batch = losses(with_options(few, epsilon=0.01, weight=1.0))
    plain, moved = seen
    lengths = (moved - plain).flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.01), rtol=1e-6, atol=0)
    assert loss.terms["loss_adversarial"] > loss.terms["loss"]
    # For so small a move, the loss grows by the gradient's length times the move's.
    embeddings = loop.module.bert.embeddings.word_embeddings(batch["input_ids"]).detach().requires_grad_()
    inputs = {key: value for key, value in batch.items() if key != "input_ids"}
    own = loop.module(inputs_embeds=embeddings, **inputs).loss
    (slope,) = torch.autograd.grad(own, embeddings)
    grown = float(slope.flatten(1).norm(dim=1).sum() * 0.01)
    difference = (loss.terms["loss_adversarial"] - loss.terms["loss"]).item()
    assert difference == pytest.approx(grown, rel=0.05)


def test_pgd_takes_its_steps_and_stays_within_epsilon(few):
    loss, seen, *_ = losses(with_options(few, method="pgd", epsilon=0.025, steps=4, step_size=0.01))
    assert len(seen) == 5
    lengths = [float((moved - seen[0]).flatten(1).norm(dim=1).max()) for moved in seen]
    assert lengths == pytest.approx([0.0, 0.01, 0.02, 0.025, 0.025], rel=0.02)
    assert loss.terms["loss_adversarial"] > loss.terms["loss"]


def test_weight_is_what_the_adversarial_term_counts(few):
    once, twice = (losses(with_options(few, epsilon=0.05, weight=weight))[0].terms for weight in (1.0, 2.0))
    torch.testing.assert_close(twice["loss_adversarial"], 2 * once["loss_adversarial"])
    torch.testing.assert_close(twice["loss"], once["loss"])


@pytest.mark.parametrize("task", [{"epsilon": 0.05}, {"method": "pgd", "epsilon": 0.05, "step_size": 0.03}])
def test_accumulation_gives_the_gradients_of_one_batch(few, task):
    run = with_options(few, **task)
    for update in (0, 2):  # the last has 3 rows, which no number of micro-batches shares evenly
        whole, *others = (gradients(run.loop(spec_of(task, accumulate=accumulate)), update) for accumulate in (1, 2, 4))
        for split in others:
            assert max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)) < 1e-12


def test_no_weight_moves_and_evaluation_is_the_inner_recipes(few):
    _, _, loop, _ = losses(few)
    before = few.loop().module.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in loop.module.state_dict().items())
    inner = Ready(few.recipe.inner, few.rows, few.source)
    assert evaluated(loop) == evaluated(inner.loop(few.recipe.spec))
    with seen_embeddings(loop.module) as seen:
        loop.model.eval()
        assert set(loop.recipe.loss(loop.model, next(loop.updates(0)).batches[0].inputs).terms) == {"loss"}
    assert len(seen) == 1


def test_options_that_would_do_nothing_are_refused():
    with pytest.raises(ValueError, match="'steps' and 'step_size' are for method"):
        spec_of({"steps": 3})


def test_a_recipe_with_updates_of_its_own_is_refused():
    with pytest.raises(ValueError, match="recipe 'two_tower' computes whole updates in its own way"):
        spec_of({"inner": {"recipe": "two_tower", "task": {}}})


def test_compiled_models_are_refused(few):
    assert "embeddings" in type(few.recipe)(spec_of(compile=True)).objections()["train.compile"]
    assert few.recipe.objections() == {}
