"""Sample text that a tiny model can learn, and that tiny model: for runs without hub and data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

WORDS = [
    "the",
    "a",
    "one",
    "this",
    "that",
    "every",
    "some",
    "my",
    "your",
    "our",
    "river",
    "stone",
    "house",
    "garden",
    "winter",
    "summer",
    "morning",
    "evening",
    "market",
    "teacher",
    "doctor",
    "farmer",
    "sailor",
    "singer",
    "reader",
    "writer",
    "painter",
    "window",
    "table",
    "letter",
    "candle",
    "basket",
    "bridge",
    "forest",
    "mountain",
    "valley",
    "island",
    "harbor",
    "village",
    "city",
    "street",
    "corner",
    "walks",
    "waits",
    "works",
    "sleeps",
    "sings",
    "reads",
    "writes",
    "paints",
    "builds",
    "carries",
    "opens",
    "closes",
    "holds",
    "brings",
    "takes",
    "finds",
    "near",
    "under",
    "over",
    "behind",
    "beside",
    "before",
    "after",
    "during",
    "without",
    "slowly",
    "quietly",
    "early",
    "late",
    "often",
    "rarely",
    "today",
    "yesterday",
    "again",
]

CUES = (
    ("bright", "golden", "warm", "gentle"),
    ("broken", "bitter", "cold", "angry"),
    ("distant", "silver", "hollow", "narrow"),
    ("sudden", "heavy", "crowded", "loud"),
    ("hidden", "ancient", "silent", "empty"),
    ("fresh", "green", "tender", "sweet"),
)
"""Words that show the class of a sentence: it has some of the words of its class."""


def sentence(random: np.random.Generator, cues: Sequence[str] = (), length: int = 8) -> str:
    """Return random words with `cues` put in at random places."""
    words = list(random.choice(WORDS, size=int(random.integers(length // 2, length + 1))))
    for cue in cues:
        words.insert(int(random.integers(len(words) + 1)), cue)
    return " ".join(words)


def class_cues(random: np.random.Generator, label: int) -> list[str]:
    """Return two of the words that show the class `label`."""
    return [str(word) for word in random.choice(CUES[label], size=2, replace=False)]


def word_tokenizer(words: Iterable[str], max_length: int = 128) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word, in BERT's layout."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    vocabulary = {word: i for i, word in enumerate([*special.values(), *sorted(set(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token of text
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **special,
    )


def vocabulary() -> list[str]:
    """Return every word that a sample sentence can have."""
    return [*WORDS, *(word for cues in CUES for word in cues)]


def write_tiny_bert(folder: Path, words: Iterable[str], **config: Any) -> None:
    """Write the configuration of a BERT with two narrow layers, and its tokenizer."""
    from transformers import BertConfig

    tokenizer = word_tokenizer(words)
    tokenizer.save_pretrained(folder)
    values = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        **(values | config),
    ).save_pretrained(folder)


def labeled_texts(size: int, seed: int, labels: Sequence[str] = ("calm", "rough")) -> Dataset:
    """Return texts with words that show their class, in the columns `text` and `label`."""
    from datasets import ClassLabel, Dataset, Features, Value

    random = np.random.default_rng(seed)
    classes = random.integers(0, len(labels), size).tolist()
    texts = [sentence(random, class_cues(random, label)) for label in classes]
    features = Features({"text": Value("string"), "label": ClassLabel(names=list(labels))})
    return Dataset.from_dict({"text": texts, "label": classes}, features=features)
