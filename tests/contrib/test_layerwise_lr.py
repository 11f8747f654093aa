"""Learning rates fall from the head to the embeddings, by one factor for each layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.loops import weights
from tests.support.techniqueruns import ready_with, technique_loop, technique_spec
from tests.support.textruns import Ready
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from taskrecipe.contrib.techniques.layers import find_places, find_stacks
from taskrecipe.errors import UsageError
from taskrecipe.spec.spec import Spec


def spec_of(decay: float | None, **tables: Any) -> Spec:
    techniques = [{"name": "layerwise_lr", "decay": decay}] if decay else []
    return technique_spec(*techniques, train={"epochs": 1, "batch_size": 8}, **tables)


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready_with(spec_of(0.5), rows=19)


SMALL = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8}
BART = {"d_model": 8, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2}
MODELS: dict[str, tuple[Any, dict[str, Any], dict[str, int]]] = {
    "bert": (
        AutoModelForSequenceClassification,
        SMALL,
        {"bert.embeddings.LayerNorm.bias": 4, "bert.encoder.layer.0": 3, "bert.encoder.layer.2": 1, "classifier": 0},
    ),
    "gpt2": (
        AutoModelForCausalLM,
        {"n_embd": 8, "n_layer": 3, "n_head": 2},
        {"transformer.wpe": 4, "transformer.h.0": 3, "transformer.h.2": 1, "transformer.ln_f": 0},
    ),
    "vit": (
        AutoModel,
        SMALL,
        {"embeddings.cls_token": 4, "layers.0": 3, "layers.2": 1, "layernorm": 0},
    ),
    "llama": (
        AutoModelForCausalLM,
        {**SMALL, "num_key_value_heads": 2},
        {"model.embed_tokens": 4, "model.layers.0": 3, "model.layers.2": 1, "model.norm": 0, "lm_head": 0},
    ),
    "bart": (
        AutoModel,
        {**BART, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8},
        {"shared": 4, "encoder.layers.0": 2, "encoder.layernorm_embedding": 4, "decoder.layers.0": 3},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_many_models_are_found(name):
    kind, config, expected = MODELS[name]
    with torch.device("meta"):
        places = find_places(kind.from_config(AutoConfig.for_model(name, **config)))
    for prefix, distance in expected.items():
        found = {place.distance for parameter, place in places.items() if f"{parameter}.".startswith(f"{prefix}.")}
        assert found == {distance}, prefix


def test_towers_are_stacks_of_their_own():
    spec = technique_spec(recipe="two_tower", task={"shared": False})
    module = ready_with(spec, rows=4).loop().state.module
    assert [len(stack.layers) for stack in find_stacks(module)] == [2, 2]
    places = find_places(module)
    for name, place in places.items():
        other = name.replace("encoders.0.", "encoders.1.")
        assert places[other] == place
    assert places["encoders.1.embeddings.LayerNorm.weight"].depth == 0


def test_each_layer_has_its_share_of_the_learning_rate(few):
    loop, plain = technique_loop(few), few.loop()
    rates = {name: group["initial_lr"] for group in loop.state.optimizer.param_groups for name in group["param_names"]}
    distances = {"bert.embeddings": 3, "bert.encoder.layer.0": 2, "bert.encoder.layer.1": 1, "classifier": 0}
    for prefix, distance in distances.items():
        found = {rate for name, rate in rates.items() if name.startswith(prefix)}
        assert found == {1e-3 * 0.5**distance}
    decays = [
        {name: group["weight_decay"] for group in each.state.optimizer.param_groups for name in group["param_names"]}
        for each in (loop, plain)
    ]
    assert decays[0] == decays[1]
    assert sum(len(group["params"]) for group in loop.state.optimizer.param_groups) == len(rates)


def test_a_scale_of_another_technique_is_kept(few):
    module = few.loop().state.module
    (effect,) = technique_loop(few).objective.effects
    names, parameters = zip(*module.named_parameters(), strict=True)
    group = {"params": list(parameters), "param_names": list(names), "weight_decay": 0.0, "lr_scale": 0.1}
    scales = {name: part["lr_scale"] for part in effect.change_groups(module, [group]) for name in part["param_names"]}
    assert scales["classifier.bias"] == 0.1
    assert scales["bert.encoder.layer.1.output.dense.bias"] == 0.1 * 0.5


def test_the_schedule_multiplies_every_share(few):
    loop = technique_loop(few)
    shares = [group["initial_lr"] / 1e-3 for group in loop.state.optimizer.param_groups]
    for update in loop.state.updates(0):
        loop.take(update)
        factor = loop.state.lr_factor(update.number)
        found = [group["lr"] for group in loop.state.optimizer.param_groups]
        assert found == pytest.approx([1e-3 * factor * share for share in shares])


def test_no_decay_changes_nothing(few):
    loops = [technique_loop(few, spec_of(decay), torch.float32, dropout=True) for decay in (None, 1.0, 0.5)]
    for loop in loops:
        list(loop.run())
    plain, same, other = map(weights, loops)
    assert all(torch.equal(value, same[name]) for name, value in plain.items())
    assert not all(torch.equal(value, other[name]) for name, value in plain.items())


def test_a_model_without_layers_is_refused():
    with pytest.raises(UsageError, match="no layers are recognized in a Sequential"):
        find_places(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ModuleList([torch.nn.Linear(2, 2)])))


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_a_decay_is_a_share(decay):
    with pytest.raises(ValueError, match="decay"):
        technique_spec({"name": "layerwise_lr", "decay": decay})
