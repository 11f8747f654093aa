"""A tiny language whose answers follow from the questions, and a tiny model that can learn it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe import Splits
from taskrecipe.contrib.chat.formats import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPPOSITES = {
    "hot": "cold",
    "old": "young",
    "big": "small",
    "fast": "slow",
    "dark": "light",
    "wet": "dry",
    "loud": "quiet",
    "early": "late",
    "near": "far",
    "soft": "hard",
}
COLORS = ["red", "blue", "green", "yellow", "white", "black"]
THINGS = ["boat", "house", "horse", "lamp", "shoe", "bird", "door", "cup"]
WORDS = sorted(
    {
        *OPPOSITES,
        *OPPOSITES.values(),
        *COLORS,
        *THINGS,
        *["what", "is", "the", "opposite", "of", "?", ".", "i", "have", "a", "how", "it", "now", "thing", "color"],
    }
)
SPECIAL = ["<|pad|>", "<|unknown|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_conversation(random: np.random.Generator, turns: int) -> list[Message]:
    """Return questions and their answers."""
    made: list[Message] = []
    for _ in range(turns):
        question, answer = make_question(random)
        made += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return made


def make_question(random: np.random.Generator, kind: int | None = None) -> tuple[str, str]:
    """Return a question and its answer: the opposite of a word (0), or the color of a thing that is told (1)."""
    if (random.integers(2) if kind is None else kind) == 0:
        pair = [*OPPOSITES.items()][random.integers(len(OPPOSITES))]
        word, opposite = pair if random.random() < 0.5 else pair[::-1]
        return f"what is the opposite of {word} ?", f"the opposite of {word} is {opposite} ."
    color, thing = str(random.choice(COLORS)), str(random.choice(THINGS))
    return f"i have a {color} {thing} . what color is it ?", f"the {thing} is {color} ."


def make_pair(random: np.random.Generator) -> dict[str, str]:
    """Return a question with its answer, and a worse one: a bare word, or the answer to another kind of question."""
    kind = int(random.integers(2))
    question, right = make_question(random, kind)
    bare = " ".join(right.split()[-2:])
    wrong = bare if random.random() < 0.5 else make_question(random, 1 - kind)[1]
    return {"prompt": question, "chosen": right, "rejected": wrong}


def make_pairs(seed: int, train: int, validation: int) -> Splits:
    """Return questions with a better and a worse answer."""
    from datasets import Dataset

    splits: Splits = {}
    for number, (split, size) in enumerate((("train", train), ("validation", validation))):
        random = np.random.default_rng([seed, number])
        splits[split] = Dataset.from_list([make_pair(random) for _ in range(size)])
    return splits


def write_weights(folder: Path, seed: int) -> None:
    """Write random weights for the configuration in `folder`, the same for the same seed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(folder)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]


def sample_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word, and tokens that begin and end turns."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        unk_token=SPECIAL[1],
        eos_token=SPECIAL[-1],
        additional_special_tokens=SPECIAL[2:-1],
        model_max_length=256,
    )
    made.chat_template = template
    return made


def write_tiny_llama(folder: Path, **config: Any) -> None:
    """Write the configuration of a Llama with two narrow layers, and its tokenizer."""
    from transformers import LlamaConfig

    tokenizer = sample_tokenizer()
    tokenizer.save_pretrained(folder)
    LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        **config,
    ).save_pretrained(folder)
