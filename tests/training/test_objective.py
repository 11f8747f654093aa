"""Techniques change the loss in the order of the spec, over stored rows and over a stream alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from accelerate import Accelerator
from tests.support.loops import gradients
from tests.support.toyruns import run_to_end, toy_loop, toy_spec, updates
from tests.support.toys import Tag, tag_rows

from taskrecipe.optional import WeighsTerms
from taskrecipe.plugins.kinds import Computed, Effect
from taskrecipe.training.objective import Objective
from taskrecipe.training.setup import make_loop


class Doubled(Effect):
    """Twice the loss, and a count of its own."""

    def loss(self, compute, model, batch):
        computed = compute(model, batch)
        return Computed(computed.outputs, {name: 2 * term for name, term in computed.terms.items()})

    def loss_counts(self, counts):
        return {name: 2 * count for name, count in counts.items()}


class Increased(Effect):
    """The loss and one more."""

    def loss(self, compute, model, batch):
        computed = compute(model, batch)
        return Computed(computed.outputs, {name: term + 1 for name, term in computed.terms.items()})

    def loss_counts(self, counts):
        return {name: count + 1 for name, count in counts.items()}


ORDERS = [
    ([], lambda number: number),
    ([Doubled(), Increased()], lambda number: 2 * number + 1),
    ([Increased(), Doubled()], lambda number: 2 * (number + 1)),
]


@pytest.mark.parametrize(("effects", "expected"), ORDERS, ids=["none", "double first", "double last"])
def test_the_last_technique_is_the_outermost(effects: Sequence[Effect], expected) -> None:
    loop = toy_loop(toy_spec())
    batch, recipe = next(loop.state.updates(0)).batches[0].inputs, loop.objective.recipe
    objective = Objective(recipe, effects)
    plain = Objective(recipe).compute(loop.model, batch)
    computed = objective.compute(loop.model, batch)
    assert torch.equal(computed.terms["loss"], expected(plain.terms["loss"]))
    assert torch.equal(computed.outputs.logits, plain.outputs.logits)
    assert objective.counts(batch) == {"loss": expected(recipe.loss_counts(batch)["loss"])}


@pytest.mark.parametrize(("effects", "expected"), ORDERS, ids=["none", "double first", "double last"])
def test_a_stream_is_trained_on_like_stored_rows(effects: Sequence[Effect], expected) -> None:
    train = {"epochs": None, "updates": 4, "order": "sequential"}
    stored = run_to_end(toy_loop(toy_spec(train=train), effects=effects))
    recipe = Tag(toy_spec(train=train, data={"streaming": True}))
    torch.manual_seed(0)
    splits = {"train": tag_rows(37).to_iterable_dataset(), "validation": tag_rows(21, seed=1)}
    loop = make_loop(recipe, recipe.load_model(None), splits, Accelerator(cpu=True), effects=effects)
    streamed = run_to_end(loop)
    plain = run_to_end(toy_loop(toy_spec(train=train)))
    losses = [[event.loss for event in updates(events)] for events in (stored, streamed, plain)]
    assert losses[0] == losses[1]
    assert losses[0][0] == pytest.approx(expected(losses[2][0]), rel=1e-6)


class Weighed(Tag, WeighsTerms):
    """Its loss counts by a tenth of the rows of the whole update."""

    def loss_counts(self, batch):
        return {**super().loss_counts(batch), "rows": float(len(batch["labels"]))}

    def term_weights(self, counts):
        return {"loss": counts["rows"] / 10}


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(("update", "rows"), [(0, 8), (4, 5)], ids=["full", "short last window"])
def test_terms_are_weighed_by_the_counts_of_the_whole_update(accumulate: int, update: int, rows: int) -> None:
    spec = toy_spec(train={"accumulate": accumulate})
    torch.manual_seed(0)
    recipe = Weighed(spec)
    splits = {"train": tag_rows(37), "validation": tag_rows(2)}
    loop = make_loop(recipe, recipe.load_model(None).double(), splits, Accelerator(cpu=True))
    plain = gradients(toy_loop(spec, dtype=torch.float64), update)
    weighed = gradients(loop, update)
    for one, other in zip(plain, weighed, strict=True):
        torch.testing.assert_close(other, one * rows / 10, rtol=1e-12, atol=1e-14)


def test_what_is_only_counted_is_no_term() -> None:
    objective = Objective(Weighed(toy_spec()))
    assert objective.term_names({"loss": 3.0, "rows": 2.0}) == ["loss"]
    assert Objective(Tag(toy_spec())).term_names({"loss": 3.0}) == ["loss"]
