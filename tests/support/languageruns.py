"""Language modeling on a few texts with a tiny model, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset

from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe, Splits
from taskrecipe.spec.spec import Spec
from taskrecipe.training.loop import Loop
from tests.support.loops import evaluated, learn_and_check, trained
from tests.support.textruns import Ready, ready

TYPES = {"clm": "gpt2", "mlm": "bert"}

TEXTS = [
    "the old sailor waits near the harbor",
    "gulls",
    "every morning the boats leave , and every evening they return to the same small harbor below the hill",
    "it rains",
    "one boat is late today",
    "the wind has turned and the sea is cold and gray",
    "nobody speaks while the light turns above them , once , and once again , until the last boat is seen at last",
]
"""Of very unequal length, so that a mean of means differs from the mean of all tokens."""


def language_spec(recipe: str, task: Mapping[str, Any] | None = None, **tables: Mapping[str, Any]) -> Spec:
    """Return the spec of a short run without dropout; `task` and `tables` are merged in."""
    values: dict[str, Any] = {
        "spec_version": 1,
        "recipe": recipe,
        "seed": 7,
        "task": {"length": 16, "size": "tiny", "tokenizer": {"vocab_size": 320}, **(task or {})},
        "model": {"type": TYPES[recipe]},
        "data": {"files": {"train": "none.txt"}},
        "train": {"epochs": 2, "batch_size": 4, "learning_rate": 0.01},
        "log": {"every": 1},
    }
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    return Spec.model_validate(values)


def prepared(
    spec: Spec, texts: Mapping[str, Sequence[str | None]] | Sequence[str] = TEXTS, source: ModelSource | None = None
) -> tuple[Recipe, Splits]:
    """Return the recipe of `spec` with its tokenizer, and the preprocessed splits."""
    if not isinstance(texts, Mapping):
        texts = {"train": texts, "validation": texts[::-1]}
    splits = {split: Dataset.from_dict({"text": list(rows)}) for split, rows in texts.items()}
    recipe = installed().recipe(spec.recipe)(spec)
    learn_and_check(recipe, splits)
    recipe.processor = recipe.load_processor(source or model_source(spec))
    return recipe, {split: recipe.preprocess(rows, split) for split, rows in splits.items()}


def model_source(spec: Spec) -> ModelSource:
    """Return the source that `[model]` describes, without dropout."""
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if spec.model.type == "bert":
        drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    values = drops if spec.model.type in TYPES.values() else {}
    return ModelSource(spec.model.name, type=spec.model.type, config_values={**values, **spec.model.config})


def tiny_model(recipe: Recipe, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """Return the recipe's model with the same weights every time."""
    torch.manual_seed(0)
    return recipe.load_model(model_source(recipe.spec)).to(dtype)


def language_loop(spec: Spec, texts: Any = TEXTS, dtype: torch.dtype = torch.float64, dropout: bool = False) -> Loop:
    """Return a loop over the texts."""
    source = ModelSource(None, type=spec.model.type) if dropout else model_source(spec)
    return Ready(*prepared(spec, texts), source).loop(dtype=dtype, dropout=True)  # the source decides about dropout


def sample_run(spec: Spec) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics before and after training on the recipe's sample."""
    loop = ready(spec).loop(dtype=torch.float32, dropout=True)
    return evaluated(loop), trained(loop)
