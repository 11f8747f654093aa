"""A cache of the hub with tiny models under the names that pages and specs use. Nothing is fetched."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from taskrecipe import ModelSource, Recipe, Spec, find_heads, installed
from taskrecipe.cli.help.card import Card
from taskrecipe.text import vocabulary, write_tiny_bert
from tests.support.templates import TEMPLATES, make_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_hub_cache(home: Path, recipes: tuple[str, ...], words: str = "") -> None:
    """Write a model for each recipe into the cache in `home` (HF_HOME), as the recipe's example spec names it.

    A model has the architecture of the recipe's sample and random weights. `words` are added to the vocabulary of
    models that know whole words only.
    """
    for name in recipes:
        card = Card(installed().find("recipes", name))
        spec = tomllib.loads(card.example)
        recipe = card.recipe(Spec.model_validate(spec))
        store = home / "hub" / f"models--{spec['model']['name'].replace('/', '--')}"
        (store / "refs").mkdir(parents=True)
        (store / "refs" / "main").write_text(COMMIT)
        snapshot = store / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        _write_model(recipe, snapshot, words if name == "glue" else "")


def _write_model(recipe: Recipe, folder: Path, words: str) -> None:
    """Write a body with random weights; its heads are left out, as in a pretrained model."""
    rows = recipe.sample(folder)
    if words:
        write_tiny_bert(folder, {*vocabulary(), *words.split()})
    if recipe.spec.recipe == "chat":
        _write_chat_model(folder)
    source = ModelSource(str(folder))
    recipe.learn(rows["train"])
    recipe.processor = recipe.load_processor(source)
    torch.manual_seed(0)
    model: Any = recipe.load_model(source)
    heads, seen, weights = find_heads(model), set[int](), {}
    for name, value in model.state_dict(keep_vars=True).items():
        if name not in heads and id(value) not in seen:  # tied weights are written once
            seen.add(id(value))
            weights[name] = value.detach().contiguous()
    model.config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _write_chat_model(folder: Path) -> None:
    """Write a chat model that knows any text, byte by byte, and takes long conversations."""
    from transformers import LlamaConfig

    tokenizer = copy.deepcopy(make_tokenizer())
    tokenizer.chat_template = TEMPLATES["chatml"]
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.model_max_length = 8192
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=8192, num_key_value_heads=2, **sizes)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.save_pretrained(folder)
