"""What causal and masked language modelling share: rows, tokenizers trained on the data, new models, scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from taskrecipe.core.errors import DataError, UsageError
from taskrecipe.core.recipe import Batch, Direction, Recipe, Row, Splits
from taskrecipe.core.spec.table import Table, TaskOptions
from taskrecipe.recipes.tokens import Ragged, as_rows

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    from taskrecipe.core.model import ModelSource

Columns = dict[str, list[Any]]

METRICS: dict[str, Direction] = {"perplexity": "min", "accuracy": "max"}

IGNORED = -100
"""The label of a token that is not predicted."""

END_OF_TEXT = "<|endoftext|>"
CAUSAL_TOKENS = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
MASKED_TOKENS = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "mask_token": "<mask>"}

SIZES = {
    "tiny": (64, 2, 2),
    "mini": (256, 4, 4),
    "small": (512, 8, 8),
    "medium": (768, 12, 12),
    "large": (1024, 24, 16),
}
"""Hidden size, layers and attention heads."""


class TokenizerTraining(Table):
    """`[task.tokenizer]`: a byte-level BPE tokenizer made from the training rows."""

    vocab_size: Annotated[int, Field(ge=300, le=2_000_000)] = Field(
        description="Tokens at most: 256 are bytes, a few mark beginnings and ends, the rest is found in the text."
    )


class LanguageOptions(TaskOptions):
    """Options that both language modelling recipes have."""

    length: Annotated[int, Field(ge=8, le=1_000_000)] = Field(default=512, description="Tokens a row has at most.")
    size: Literal["tiny", "mini", "small", "medium", "large"] | None = Field(
        default=None,
        description="A size for a model that starts from scratch: hidden size, layers and heads of 64/2/2, 256/4/4, "
        "512/8/8, 768/12/12, 1024/24/16. [model.config] goes before it.",
    )
    tokenizer: TokenizerTraining | None = Field(
        default=None, description="Train a tokenizer on the data instead of taking the model's."
    )


# Rows ----------------------------------------------------------------------------------------------------


def check_texts(splits: Splits) -> None:
    """Refuse a row without a text; how many are blank is told."""
    from taskrecipe.core.data.text import check_text

    for split, rows in splits.items():
        check_text(rows, split, "text")


def without_blanks(rows: Dataset) -> Dataset:
    """The rows that hold more than white space."""
    import pyarrow.compute as pc

    texts = rows.with_format("arrow")[:]["text"]
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0).to_numpy()
    return rows.select(np.flatnonzero(~blank)) if blank.any() else rows


def tokenize(rows: Dataset, encode: Callable[[list[str]], Columns]) -> dict[str, Ragged]:
    """The tokens of each text, and what else `encode` gives for a batch of texts."""
    from taskrecipe.core.data.cache import map_rows

    if not len(rows):  # tokenizers take no empty batch
        return {name: Ragged.of([]) for name in encode([""])}
    made = map_rows(rows, lambda batch: {name: _small(lists) for name, lists in encode(batch["text"]).items()})
    return {name: Ragged.column(made, name) for name in made.column_names}


def _small(lists: list[Any]) -> list[Any]:
    return [np.asarray(one, dtype=np.int32) for one in lists]


def without_short(columns: dict[str, Ragged], split: str, least: int) -> dict[str, Ragged]:
    """The rows of at least as many tokens; what is dropped is told."""
    tokens = columns["input_ids"]
    kept = tokens.lengths >= least
    if kept.all():
        return columns
    short = tokens.lengths[~kept]
    warnings.warn(
        f"{split}: {len(short)} of {len(tokens)} rows have fewer than {least} tokens and are dropped, "
        f"{short.sum()} of {len(tokens.values)} tokens with them",
        stacklevel=2,
    )
    return {name: lists.keep(kept) for name, lists in columns.items()}


def finished(columns: dict[str, Ragged], split: str, streaming: bool) -> Dataset:
    """The rows of a split, of which there must be some; a block of a stream may have none."""
    rows = as_rows(columns)
    if not len(rows) and not streaming:
        raise DataError("no row is left in which there is a token to predict", split=split, column="text")
    return rows


def mask_padding(batch: Batch, rows: list[Row]) -> Batch:
    """Add an attention mask if some rows are shorter than others; without one, faster kernels can be used."""
    import torch

    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    if bool((lengths == lengths[0]).all()):
        return batch
    mask = torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]
    return {**batch, "attention_mask": mask.long()}


# Tokenizers ----------------------------------------------------------------------------------------------


def find_tokenizer(recipe: Recipe, source: ModelSource, rows: Dataset, special: Mapping[str, str]) -> Any:
    """The model's tokenizer, or one trained on `rows` if the options ask for that."""
    training: TokenizerTraining | None = recipe.options.tokenizer
    if training is None:
        return source.tokenizer()
    if source.has_weights:
        raise UsageError(
            f"[task.tokenizer]: the weights of {source.name} belong to its own tokenizer; "
            "set [model].pretrained = false to start from scratch, or remove [task.tokenizer]"
        )
    if source.processor is not None:
        raise UsageError(
            f"[task.tokenizer] trains a tokenizer, and [model].processor names {source.processor!r}: keep one"
        )
    if recipe.spec.data.streaming:
        warnings.warn(f"the tokenizer learns from the first {len(rows)} rows of the stream", stacklevel=2)
    return train_tokenizer(_texts(rows), training.vocab_size, special)


def train_tokenizer(texts: Iterable[list[str]], vocab_size: int, special: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer learnt from batches of texts; the same texts give the same tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    if "cls_token" in special:
        first, last = special["cls_token"], special["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)  # type: ignore[no-untyped-call]


def _texts(rows: Dataset) -> Iterator[list[str]]:
    for batch in rows.select_columns(["text"]).iter(1000):
        yield batch["text"]


# Models --------------------------------------------------------------------------------------------------


def config_values(source: ModelSource, options: LanguageOptions, tokenizer: Any) -> dict[str, Any]:
    """What a model's configuration must say to fit tokenizer, length and size; nothing where weights decide that."""
    if source.has_weights:
        if options.size is not None:
            raise UsageError(
                f"[task].size is {options.size!r}, but {source.name} has weights, and so a size; "
                "set [model].pretrained = false to start from scratch, or remove [task].size"
            )
        return {}
    config = source.config()
    values = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    values |= {"vocab_size": len(tokenizer), **_room(config, options.length, tokenizer)}
    values |= _shape(config, options.size) if options.size else {}
    return {config.attribute_map.get(name, name): value for name, value in values.items() if hasattr(config, name)}


def require_fit(source: ModelSource, options: LanguageOptions, tokenizer: Any) -> None:
    """Refuse a tokenizer with more tokens than the model knows, and rows longer than it can take."""
    config = source.config(**config_values(source, options, tokenizer)).get_text_config()
    if len(tokenizer) > config.vocab_size:
        raise UsageError(
            f"the tokenizer has {len(tokenizer)} tokens and the model knows {config.vocab_size}; "
            "set [model].processor to the tokenizer the model was trained with"
            + (", or raise [model.config].vocab_size" if not source.has_weights else "")
        )
    limit = min(getattr(config, "max_position_embeddings", None) or math.inf, tokenizer.model_max_length)
    if options.length > limit:
        raise UsageError(f"[task].length is {options.length}; the model takes {limit:.0f} tokens at most")


def _room(config: Any, length: int, tokenizer: Any) -> dict[str, int]:
    # RoBERTa and its kin number positions from after the padding token.
    needed = length + (0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id + 1)
    positions = getattr(config, "max_position_embeddings", None)
    return {"max_position_embeddings": needed} if positions is not None and positions < needed else {}


def _shape(config: Any, size: str) -> dict[str, int]:
    """A size in the terms of any architecture, whose own proportions are kept."""
    hidden, layers, heads = SIZES[size]
    values = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    if getattr(config, "intermediate_size", None):
        values["intermediate_size"] = hidden * config.intermediate_size // config.hidden_size
    if getattr(config, "num_key_value_heads", None):
        values["num_key_value_heads"] = max(1, heads * config.num_key_value_heads // config.num_attention_heads)
    if getattr(config, "head_dim", None):
        values["head_dim"] = hidden // heads
    return values


# Loss and score ------------------------------------------------------------------------------------------


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Cross entropy, a mean over the labels that are not ignored; 0 where all are."""
    import torch

    total = torch.nn.functional.cross_entropy(
        _flat(logits), labels.flatten(), reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing
    )
    return total / (labels != IGNORED).sum().clamp(min=1)


def row_numbers(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """For each row: the negative log likelihood of its labels, how many there are, and how many are the likeliest."""
    import torch

    losses = torch.nn.functional.cross_entropy(
        _flat(logits), labels.flatten(), reduction="none", ignore_index=IGNORED
    ).view_as(labels)
    predicted = labels != IGNORED
    return {
        "nll": losses.cpu().double().sum(-1),  # not every accelerator has doubles
        "tokens": predicted.sum(-1),
        "correct": ((logits.argmax(-1) == labels) & predicted).sum(-1),
    }


def score(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Perplexity and accuracy over all tokens of a split: every token counts alike, whatever row it is in."""
    tokens = int(numbers["tokens"].sum())
    if not tokens:
        return dict.fromkeys(METRICS, math.nan)
    mean = math.fsum(numbers["nll"]) / tokens
    return {
        "perplexity": math.exp(mean) if mean < 709 else math.inf,
        "accuracy": int(numbers["correct"].sum()) / tokens,
    }


def _flat(logits: torch.Tensor) -> torch.Tensor:
    # Half precision is too coarse to sum a vocabulary in; double precision, as tests use, is kept.
    return (logits if logits.element_size() > 4 else logits.float()).flatten(0, -2)
