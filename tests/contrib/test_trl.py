"""What TRL made of the same templates, pairs and models; `tests/support/trl_oracle.py` recorded it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.templates import CONVERSATIONS, TEMPLATES, make_tokenizer
from tests.support.textruns import text_spec
from tests.support.trl_oracle import BETA, load_tiny_model, make_pair_rows
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from taskrecipe.contrib.chat.pairs import encode_pairs
from taskrecipe.contrib.chat.preference import Preference
from taskrecipe.contrib.chat.rendering import ChatTemplate
from taskrecipe.contrib.chat.reward import Reward
from taskrecipe.contrib.chat.sample import sample_tokenizer
from taskrecipe.text import find_projection

RECORDED = json.loads((Path(__file__).parent / "trl_oracle.json").read_text())


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_same_tokens_are_trained_on(name):
    """Where a template has no marks, TRL also trains on the line break after the token that ends a turn."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[name]
    template, marked = ChatTemplate(tokenizer), "marked" in name
    for messages, expected in zip(CONVERSATIONS, RECORDED["masks"][name], strict=True):
        encoded = template.encode(*template.find_turns(messages, None, last=not marked))
        assert encoded.ids == expected["input_ids"]
        trained = expected["trained"]
        if not marked and tokenizer.decode(encoded.ids[-1:]) == "\n":
            assert trained[-1] == 1
            trained = [*trained[:-1], 0]
        assert encoded.trained.astype(int).tolist() == trained


def pair_batch(recipe: Any, with_reference: Any = None) -> dict[str, torch.Tensor]:
    recipe.processor = sample_tokenizer()
    batch = recipe.collate(list(encode_pairs(make_pair_rows(), recipe.processor, recipe.options, "train")))
    return {**batch, "reference": with_reference(batch)} if with_reference else batch


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_losses_over_pairs_are_the_same(loss):
    recipe = Preference(text_spec("preference", {"loss": loss, "beta": BETA}))
    policy, start = (load_tiny_model(AutoModelForCausalLM, seed).eval() for seed in (1, 0))
    recipe._projection = find_projection(policy)
    with torch.no_grad():
        batch = pair_batch(recipe, lambda pairs: recipe._measure(start, pairs, find_projection(start)).log_probs)
        found = recipe.loss(recipe.forward(policy, batch), batch, training=True)["loss"].item()
    assert found == pytest.approx(RECORDED["preferences"][loss], rel=1e-6)


@pytest.mark.parametrize("centering", [0.0, 0.1])
def test_losses_of_a_reward_model_are_the_same(centering):
    recipe = Reward(text_spec("reward", {"centering": centering}))
    model = load_tiny_model(AutoModelForSequenceClassification, 1, num_labels=1).eval()
    batch = pair_batch(recipe)
    with torch.no_grad():
        found = recipe.loss(recipe.forward(model, batch), batch, training=True)["loss"].item()
    assert found == pytest.approx(RECORDED["rewards"][str(centering)], rel=1e-6)
