"""Rows in packs: each gets the loss and the gradients that it gets alone."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.double import DoubleThroughout
from transformers import AutoConfig, AutoModelForCausalLM

from taskrecipe.errors import UsageError
from taskrecipe.recipe import IGNORED
from taskrecipe.text.packs import MEMBERS, pack_rows, require_packs, sum_by_row
from taskrecipe.text.projection import compute_losses, find_projection, next_tokens, run_model

VOCABULARY = 97
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": VOCABULARY}
ROPE = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 1, "head_dim": 32, "pad_token_id": 0}
DROPS = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {**SIZES, **DROPS, "n_positions": 128}),
    "llama": ("llama", ROPE),
    "llama with scaled positions": (
        "llama",
        {
            **ROPE,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "qwen2": ("qwen2", ROPE),
    "qwen3": ("qwen3", ROPE),
    "mistral with a window": ("mistral", {**ROPE, "sliding_window": 5}),
    "gemma": ("gemma", ROPE),
    "gemma2": ("gemma2", {**ROPE, "sliding_window": 5, "query_pre_attn_scalar": 32}),
    "gemma3": ("gemma3_text", {**ROPE, "sliding_window": 5, "query_pre_attn_scalar": 32}),
}


def make_model(name: str, attention: str = "eager", dtype: torch.dtype = torch.float64) -> Any:
    kind, values = MODELS[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **values)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype)


def make_rows(lengths: list[int], seed: int = 0) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        ids = random.integers(1, VOCABULARY, length)
        labels = np.where(random.random(length) < 0.7, ids, IGNORED)
        rows.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
    return rows


def gradients(model: Any, batches: list[dict[str, Any]]) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    projection, total = find_projection(model), 0.0
    count = sum(int((next_tokens(batch) != IGNORED).sum()) for batch in batches)
    for batch in batches:
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        compute = partial(compute_losses, labels=next_tokens(batch), correct=False)
        losses = run_model(model, {**inputs, "use_cache": False}, projection, compute)
        (losses.total / count).backward()
        total += float(losses.total.detach())
    return total, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, kind) for name in MODELS for kind in ("sdpa", "eager") if (name, kind) != ("gemma2", "sdpa")],
)
def test_rows_in_packs_have_the_loss_and_gradients_of_rows_alone(name, attention):
    """Lengths are multiples of nothing, one row fills a pack, one is longer, and one has a single token."""
    rows = make_rows([7, 24, 3, 11, 1, 29, 6, 9, 13])
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        model = make_model(name, attention, dtype)
        require_packs(model, "packing", 24)
        packed = pack_rows(rows, 24, 0)
        assert len(packed["input_ids"]) < len(rows)
        alone = [pack_rows([row], 24, 0) for row in rows]
        with DoubleThroughout() if dtype == torch.float64 else nullcontext():
            loss, found = gradients(model, [packed])
            expected_loss, expected = gradients(model, alone)
        assert loss == pytest.approx(expected_loss, rel=tolerance)
        for one, other in zip(found, expected, strict=True):
            assert float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))


def test_without_positions_that_restart_a_row_is_another():
    """So the test above can fail."""
    model, rows = make_model("llama"), make_rows([7, 9])
    packed = pack_rows(rows, 24, 0)
    running = {**packed, "position_ids": torch.arange(16)[None]}
    alone = gradients(model, [pack_rows([row], 24, 0) for row in rows])[0]
    assert gradients(model, [running])[0] != pytest.approx(alone, rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(4, 24))
def test_every_token_of_every_row_is_packed_once(lengths, capacity):
    rows = make_rows(lengths)
    packed = pack_rows(rows, capacity, 0)
    assert packed["input_ids"].shape[1] <= max(capacity, *lengths)
    for number, row in enumerate(rows):
        places = (packed[MEMBERS] == number).nonzero()
        assert len(set(places[:, 0].tolist())) == 1
        chosen = tuple(places.T)
        assert packed["input_ids"][chosen].tolist() == row["input_ids"]
        assert packed["labels"][chosen].tolist() == [IGNORED, *row["labels"][1:]]
        assert packed["position_ids"][chosen].tolist() == list(range(len(row["input_ids"])))
    padding = packed[MEMBERS] == -1
    assert (packed["labels"][padding] == IGNORED).all()
    assert sum_by_row(torch.ones(padding.shape), packed).tolist() == lengths


def test_packs_are_about_equally_long():
    packed = pack_rows(make_rows([20, 10, 10, 10, 5, 5]), 40, 0)
    assert packed["input_ids"].shape == (2, 30)


@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        ("bloom", {**SIZES, "n_head": 2}, "attends from one packed row to another"),
        ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "state_size": 4}, "attends"),
        ("opt", {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 64}, "attends from one packed row to another"),
        (
            "llama",
            {**ROPE, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
            "changes its positions by the longest row",
        ),
        ("llama4_text", {**ROPE, "attention_chunk_size": 8, "intermediate_size_mlp": 64}, "attends in chunks of 8"),
    ],
)
def test_a_model_for_which_packs_are_not_exact_is_refused(kind, values, why):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values))
    with pytest.raises(UsageError, match=rf"packing: a \w+ model {why}"):
        require_packs(model.train(), "packing", 24)
    assert model.training
