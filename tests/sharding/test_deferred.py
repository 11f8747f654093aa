"""A model whose weights are filled later gets the weights that it would have got at once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForSeq2SeqLM
from transformers import AutoModelForSequenceClassification as AutoModelForClasses

from taskrecipe.sharding.deferred import DeferredWeights, NotDeferrableError

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (AutoModelForCausalLM, {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99}),
    "llama": (AutoModelForCausalLM, {**SMALL, "vocab_size": 99}),
    "bert": (AutoModelForClasses, {**SMALL, "vocab_size": 99}),
    "vit": (AutoModelForImageClassification, SMALL),  # it draws from a truncated distribution
    "swin": (AutoModelForImageClassification, {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2]}),
    "t5": (AutoModelForSeq2SeqLM, {"d_model": 32, "num_layers": 2, "d_ff": 48, "vocab_size": 99}),
}


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _fill(module: torch.nn.Module, deferred: DeferredWeights) -> dict[str, torch.Tensor]:
    tensors = _tensors(module)
    names, found = list(tensors), {}
    deferred.fill(list(tensors.values()), lambda place, value: found.update({names[place]: value.clone()}))
    return {name: found.get(name, value) for name, value in tensors.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_weights_and_what_is_drawn_afterwards_are_the_same(kind: str) -> None:
    auto, values = MODELS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(kind, **values)
    torch.manual_seed(5)
    expected, after = _tensors(auto.from_config(config)), torch.rand(1)
    torch.manual_seed(5)
    with DeferredWeights() as deferred:
        module = auto.from_config(config)
    assert all(parameter.is_meta for parameter in module.parameters())
    found = _fill(module, deferred)
    assert torch.equal(torch.rand(1), after)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


class Tower(torch.nn.Module):
    """Its layers are drawn twice, and scaled afterwards: a part of a layer, and one by another."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(layers))
        self.scale = torch.ones(64) * 3
        for layer in self.layers:
            torch.nn.init.orthogonal_(layer.weight)
            with torch.no_grad():
                layer.weight[:2] *= 0.5
                layer.weight[5].copy_(layer.weight[0] + self.scale)


def test_views_and_tensors_that_depend_on_others_are_filled_too() -> None:
    torch.manual_seed(1)
    expected = _tensors(Tower(3))
    torch.manual_seed(1)
    with DeferredWeights() as deferred:
        module = Tower(3)
    found = _fill(module, deferred)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_few_tensors_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: each is handed over, and freed, before the next one is drawn."""
    with DeferredWeights() as deferred:
        module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
        for layer in module:
            torch.nn.init.normal_(layer.weight)
    held: list[int] = []
    repeat = DeferredWeights._repeat

    def watch(self: DeferredWeights, operation: Any, memory: dict[int, Any]) -> None:
        repeat(self, operation, memory)
        held.append(sum(storage.nbytes() for storage in memory.values()))

    monkeypatch.setattr(DeferredWeights, "_repeat", watch)
    _fill(module, deferred)
    assert max(held) <= 2 * 64 * 64 * 4
    assert len(held) >= 60


def test_a_copy_in_another_number_type_is_deferred_too() -> None:
    source = torch.randn(300, 300).bfloat16()
    with DeferredWeights() as deferred:
        copied = source.float()
        small = source[:2].float()
    assert copied.is_meta
    assert not small.is_meta
    found: list[torch.Tensor] = []
    deferred.fill([copied], lambda _, value: found.append(value.clone()))
    assert torch.equal(found[0], source.float())


def test_a_draw_into_memory_that_is_there_is_refused() -> None:
    there = torch.zeros(3)
    with DeferredWeights(), pytest.raises(NotDeferrableError):
        there.normal_()
