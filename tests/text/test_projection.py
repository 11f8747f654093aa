"""Losses in chunks over the vocabulary: those of the model's own logits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.support.double import DoubleThroughout
from tests.text.test_packs import ROPE, VOCABULARY, make_model
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from taskrecipe.recipe import IGNORED
from taskrecipe.text import projection as module
from taskrecipe.text.projection import (
    compute_losses,
    compute_nll,
    find_likeliest,
    find_projection,
    run_model,
    whole_outputs,
)

CAUSAL = {
    "gpt2": None,
    "llama": None,
    "gemma2": None,
    "gemma3": None,
    "cohere": {**ROPE, "logit_scale": 0.3},
    "granite": {**ROPE, "logits_scaling": 3.0},
}
MASKED = {
    "bert": {"intermediate_size": 64},
    "roberta": {"intermediate_size": 64, "pad_token_id": 0},
    "modernbert": {"intermediate_size": 64, "pad_token_id": 0},
    "electra": {"intermediate_size": 64, "embedding_size": 16},
}


def model_named(name: str) -> Any:
    if name in MASKED:
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": VOCABULARY}
        config = AutoConfig.for_model(name, **sizes, **MASKED[name])
        torch.manual_seed(0)
        return AutoModelForMaskedLM.from_config(config).double().eval()
    if CAUSAL[name] is None:
        return make_model(name).eval()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **CAUSAL[name])).double().eval()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 1)
    monkeypatch.setattr(module, "LEAST", 7)


@pytest.fixture
def double_throughout():
    with DoubleThroughout():
        yield


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (3, 11), generator=random)
    labels = torch.randint(0, VOCABULARY, (3, 11), generator=random)
    return ids, labels.masked_fill(torch.rand(3, 11, generator=random) < 0.3, IGNORED)


def gradients(model: Any) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


@pytest.mark.usefixtures("double_throughout")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", [*CAUSAL, *MASKED])
def test_loss_and_gradients_are_those_of_all_logits_at_once(name, smoothing):
    model, (ids, labels) = model_named(name), batch()
    projection = find_projection(model)
    assert projection.head is not None
    logits = model(input_ids=ids).logits
    expected = cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing
    )
    expected.backward()
    wanted = gradients(model)
    compute = partial(compute_losses, labels=labels, smoothing=smoothing, correct=True)
    losses = run_model(model, {"input_ids": ids}, projection, compute)
    (losses.total * 3.0).backward()
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-12)
    for one, other in zip(gradients(model), wanted, strict=True):
        assert (one - 3.0 * other).abs().max() < 1e-12
    predicted = labels != IGNORED
    nll = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED).view_as(labels)
    assert torch.allclose(losses.nll, nll, rtol=1e-12)
    assert torch.equal(losses.correct, (logits.argmax(-1) == labels) & predicted)
    with torch.no_grad():
        measured = run_model(model, {"input_ids": ids}, projection, compute)
    assert measured.total.item() == pytest.approx(expected.item(), rel=1e-12)
    assert torch.allclose(measured.nll, nll, rtol=1e-12)


@pytest.mark.usefixtures("double_throughout")
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_single_losses_can_be_weighed_differently(name):
    model, (ids, labels) = model_named(name), batch()
    projection, weights = find_projection(model), torch.rand(3, 11, dtype=torch.float64)
    logits = model(input_ids=ids).logits
    nll = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED).view_as(labels)
    (nll * weights).sum().backward()
    wanted = gradients(model)
    found = run_model(model, {"input_ids": ids}, projection, partial(compute_nll, labels=labels))
    assert torch.allclose(found, nll, rtol=1e-12)
    (found * weights).sum().backward()
    for one, other in zip(gradients(model), wanted, strict=True):
        assert (one - other).abs().max() < 1e-12


def test_a_frozen_head_gets_no_gradient_and_passes_one_on():
    model, (ids, labels) = model_named("llama"), batch()
    model.lm_head.requires_grad_(False)
    projection = find_projection(model)
    compute = partial(compute_losses, labels=labels, correct=False)
    run_model(model, {"input_ids": ids}, projection, compute).total.backward()
    assert model.lm_head.weight.grad is None
    assert model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0


def test_a_model_that_changes_its_logits_in_another_way_gives_them_itself(monkeypatch):
    model, (ids, labels) = model_named("llama"), batch()
    inner = model.forward

    def forward(*args, **kwargs):
        outputs = inner(*args, **kwargs)
        outputs.logits = outputs.logits.sin()
        return outputs

    monkeypatch.setattr(model, "forward", forward)
    projection = find_projection(model)
    assert projection.head is None
    losses = run_model(model, {"input_ids": ids}, projection, partial(compute_losses, labels=labels, correct=False))
    expected = cross_entropy(model(input_ids=ids).logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_layer_in_place_of_the_last_one_is_used():
    model, (ids, labels) = model_named("llama"), batch()
    projection, compute = find_projection(model), partial(compute_losses, labels=labels, correct=False)
    before = run_model(model, {"input_ids": ids}, projection, compute).total.item()
    model.lm_head = torch.nn.Sequential(model.lm_head, torch.nn.Tanh())
    found = run_model(model, {"input_ids": ids}, projection, compute).total.item()
    expected = cross_entropy(model(input_ids=ids).logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
    assert found == pytest.approx(expected, rel=1e-12)
    assert found != pytest.approx(before, rel=1e-5)


def test_all_logits_can_be_had():
    model, (ids, labels) = model_named("llama"), batch()
    projection = find_projection(model)
    with torch.no_grad(), whole_outputs():
        outputs = run_model(
            model, {"input_ids": ids}, projection, partial(compute_losses, labels=labels, correct=False)
        )
    assert outputs.logits.shape == (3, 11, VOCABULARY)


def test_in_bfloat16_logits_are_summed_in_single_precision():
    model, (ids, labels) = model_named("llama").float(), batch()
    projection = find_projection(model)
    compute = partial(compute_losses, labels=labels, correct=False)
    exact = run_model(model, {"input_ids": ids}, projection, compute).total
    exact.backward()
    wanted = gradients(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = run_model(model, {"input_ids": ids}, projection, compute)
    losses.total.backward()
    assert losses.total.dtype == losses.nll.dtype == torch.float32
    assert losses.total.item() == pytest.approx(exact.item(), rel=1e-2)
    for one, other in zip(gradients(model), wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.05 * other.norm()


def test_the_likeliest_tokens_are_those_of_all_logits():
    model, (ids, _) = model_named("bert"), batch()
    projection = find_projection(model)
    with torch.no_grad():
        best = model(input_ids=ids).logits.flatten(0, 1).softmax(-1).topk(5)
        tokens, probabilities = run_model(
            model, {"input_ids": ids}, projection, lambda layer, hidden: find_likeliest(layer, hidden.flatten(0, 1), 5)
        )
    assert torch.equal(tokens.long(), best.indices)
    assert torch.allclose(probabilities, best.values)
