"""Frozen parameters keep their bits: the chosen ones, all of them, and as long as the spec says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.loops import interrupted, weights
from tests.support.techniqueruns import ready_with, technique_loop, technique_spec
from tests.support.textruns import Ready

from taskrecipe.errors import UsageError
from taskrecipe.spec.spec import Spec
from taskrecipe.training.events import Updated
from taskrecipe.training.loop import Loop

pytestmark = pytest.mark.filterwarnings("ignore:freeze:UserWarning")

EMBEDDINGS, FIRST, SECOND = "bert.embeddings.", "bert.encoder.layer.0.", "bert.encoder.layer.1."


def spec_of(options: dict[str, Any], **train: Any) -> Spec:
    train = {"updates": 6, "epochs": 9, "batch_size": 8, **train}
    return technique_spec({"name": "freeze", **options}, train=train)


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready_with(spec_of({"layers": 0}), rows=19)


def changed_after(loop: Loop, updates: int) -> set[str]:
    """The parameters that have other bits after some updates."""
    before = weights(loop)
    for event in loop.run():
        if isinstance(event, Updated) and event.step == updates:
            break
    after = weights(loop)
    names = [name for name, _ in loop.state.module.named_parameters()]
    return {name for name in names if not torch.equal(before[name], after[name])}


CHOICES = {
    "the embeddings": ({"layers": 0}, (EMBEDDINGS,)),
    "the first layer": ({"layers": 1}, (EMBEDDINGS, FIRST)),
    "all layers": ({"layers": 2}, (EMBEDDINGS, FIRST, SECOND)),
    "by name": ({"names": ["bert.encoder.layer.1.*", "bert.embeddings.word*"]}, (SECOND, f"{EMBEDDINGS}word")),
    "all but the head": ({"all_but_head": True}, ("bert.",)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_chosen_stays_and_all_else_is_trained(name, few):
    options, prefixes = CHOICES[name]
    loop = technique_loop(few, spec_of(options), dtype=torch.float32)
    everything = {name for name, _ in loop.state.module.named_parameters()}
    frozen = {name for name in everything if name.startswith(prefixes)}
    in_optimizer = {name for group in loop.state.optimizer.param_groups for name in group["param_names"]}
    assert in_optimizer == everything - frozen
    assert changed_after(loop, 2) == everything - frozen
    assert 0 < len(frozen) < len(everything)


def test_a_recipe_of_several_heads_keeps_them_all_trained():
    tasks = {"a": {"recipe": "glue", "task": {"name": "mrpc"}}, "b": {"recipe": "glue", "task": {"name": "cola"}}}
    spec = technique_spec({"name": "freeze", "all_but_head": True}, recipe="multitask", task={"tasks": tasks})
    loop = technique_loop(ready_with(spec), spec)
    trained = {name for name, parameter in loop.state.module.named_parameters() if parameter.requires_grad}
    assert trained == {f"models.{number}.classifier.{kind}" for number in (0, 1) for kind in ("weight", "bias")}


def test_they_are_trained_from_the_update_that_is_named(few):
    spec = spec_of({"layers": 1, "until": 3})
    everything = {name for name, _ in technique_loop(few, spec).state.module.named_parameters()}
    frozen = {name for name in everything if name.startswith((EMBEDDINGS, FIRST))}
    for updates, expected in ((1, everything - frozen), (3, everything - frozen), (4, everything)):
        loop = technique_loop(few, spec, dtype=torch.float32)
        assert changed_after(loop, updates) == expected
        assert {name for group in loop.state.optimizer.param_groups for name in group["param_names"]} == everything


def test_frozen_parameters_have_no_gradient_and_no_weight_decay(few):
    loop = technique_loop(few, spec_of({"names": ["bert.embeddings.*"], "until": 2}))
    loop.model.train()
    update = next(loop.state.updates(0))
    loop.objective.effects[0].before_update(update.number, loop.state.module)
    update.compute_gradients()
    gradients = {name: parameter.grad for name, parameter in loop.state.module.named_parameters()}
    assert {name for name, gradient in gradients.items() if gradient is None} == {
        name for name in gradients if name.startswith(EMBEDDINGS)
    }


@pytest.mark.parametrize("after", [1, 3, 4])
@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_run_is_resumed_exactly_across_the_thaw(after, ema, few):
    spec = spec_of({"layers": 1, "until": 3}, **({"ema": ema} if ema else {}))
    whole = technique_loop(few, spec, dtype=torch.float32, dropout=True)
    list(whole.run())
    parts = (technique_loop(few, spec, dtype=torch.float32, dropout=True) for _ in range(2))
    resumed = interrupted(*parts, after=after)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())
    if ema:
        averages = (loop.state.ema.average for loop in (whole, resumed))
        assert all(torch.equal(a, b) for a, b in zip(*(average.values() for average in averages), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["bert.embedings.*"]}, r"no parameter is called 'bert.embedings.\*'; similar names are bert.embed"),
        ({"names": ["classifier.*", "Classifier.*"]}, "no parameter is called 'Classifier.*'"),
        ({"layers": 3}, "layers = 3, but the model has 2 layers"),
    ],
)
def test_what_the_model_does_not_have_is_refused(options, message, few):
    with pytest.raises(UsageError, match=message):
        technique_loop(few, spec_of(options))


def test_a_model_without_a_head_is_refused():
    spec = technique_spec({"name": "freeze", "all_but_head": True}, recipe="two_tower", task={})
    with pytest.raises(UsageError, match="a Towers has no head apart from its base model"):
        technique_loop(ready_with(spec, rows=4), spec)


def test_freezing_everything_leaves_nothing_to_train(few):
    with pytest.raises(UsageError, match="nothing to train"):
        technique_loop(few, spec_of({"names": ["*"]}))


@pytest.mark.parametrize("options", [{}, {"layers": 1, "all_but_head": True}, {"names": ["a"], "layers": 0}])
def test_exactly_one_choice_is_made(options):
    with pytest.raises(ValueError, match="exactly one of 'names', 'layers' and 'all_but_head = true'"):
        spec_of(options)


@pytest.mark.parametrize(("until", "end"), [(None, "$"), (3, " for the first 3 updates$")])
def test_the_number_of_frozen_weights_is_reported(until, end, few):
    sizes = {name: p.numel() for name, p in few.loop().state.module.named_parameters()}
    frozen = sum(size for name, size in sizes.items() if name.startswith(EMBEDDINGS))
    options = {"layers": 0} | ({"until": until} if until else {})
    wanted = f"freeze: {frozen:,} of {sum(sizes.values()):,} weights are frozen{end}"
    with pytest.warns(UserWarning, match=wanted):
        technique_loop(few, spec_of(options))
