"""What causal and masked language modeling share: rows, tokenizers trained on the data, new models, scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from taskrecipe.errors import DataError, UsageError
from taskrecipe.recipe import IGNORED, Batch, Direction, Recipe, Row, Scorer
from taskrecipe.spec.table import Table, TaskOptions
from taskrecipe.text.packing import Ragged, make_dataset
from taskrecipe.text.packs import MEMBERS, sum_by_row

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from taskrecipe.model import ModelSource
    from taskrecipe.text.projection import TokenLosses

Columns = dict[str, list[Any]]

LANGUAGE_METRICS: dict[str, Direction] = {"perplexity": "min", "accuracy": "max"}

TEXT_NUMBER = "text_number"
"""The column that has the number of the text that a piece to predict is of."""

_TEXTS_AT_ONCE = 10_000

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
    """`[task.tokenizer]`: a byte-level BPE tokenizer that is trained on the training rows."""

    vocab_size: Annotated[int, Field(ge=300, le=2_000_000)] = Field(
        description="Tokens at most: 256 are bytes, a few mark beginnings and ends, the rest is found in the text."
    )


class LanguageOptions(TaskOptions):
    """Options that both language modeling recipes have."""

    length: Annotated[int, Field(ge=8, le=1_000_000)] = Field(default=512, description="Tokens a row has at most.")
    size: Literal["tiny", "mini", "small", "medium", "large"] | None = Field(
        default=None,
        description="A size for a model that starts from scratch: hidden size, layers and heads of 64/2/2, 256/4/4, "
        "512/8/8, 768/12/12, 1024/24/16. [model.config] overrides it.",
    )
    tokenizer: TokenizerTraining | None = Field(
        default=None, description="Train a tokenizer on the data instead of taking the model's."
    )


# Rows ----------------------------------------------------------------------------------------------------


def drop_blank_texts(rows: Dataset) -> Dataset:
    """Return the rows whose text has more than white space."""
    import pyarrow.compute as pc

    # One by one: the trimmed texts of all rows would be in memory at once.
    chunks = (table["text"] for table in rows.with_format("arrow").iter(_TEXTS_AT_ONCE))
    found = [pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0).to_numpy() for texts in chunks]
    blank = np.concatenate([np.zeros(0, bool), *found])
    return rows.select(np.flatnonzero(~blank)) if blank.any() else rows


def tokenize_texts(rows: Dataset, encode: Callable[[list[str]], Columns]) -> dict[str, Ragged]:
    """Return the tokens of each text, and whatever else `encode` returns for a batch of texts."""
    from taskrecipe.data.cache import map_rows

    if not len(rows):  # tokenizers take no empty batch
        return {name: Ragged.of([]) for name in encode([""])}
    made = map_rows(rows, lambda batch: {name: _shrink_numbers(lists) for name, lists in encode(batch["text"]).items()})
    return {name: Ragged.column(made, name) for name in made.column_names}


def _shrink_numbers(lists: list[Any]) -> list[Any]:
    return [np.asarray(one, dtype=np.int32) for one in lists]


def drop_short_rows(columns: dict[str, Ragged], split: str, least: int) -> dict[str, Ragged]:
    """Return the rows of at least `least` tokens, and warn of what is dropped."""
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


def make_rows(columns: dict[str, Ragged], split: str, streaming: bool) -> Dataset:
    """Return the rows of a split, and raise if there are none; a block of a stream may have none."""
    rows = make_dataset(columns)
    if not len(rows) and not streaming:
        raise DataError("no row is left in which there is a token to predict", split=split, column="text")
    return rows


def add_attention_mask(batch: Batch, rows: list[Row]) -> Batch:
    """Add an attention mask if some rows are shorter than others. Without a mask, faster kernels can be used."""
    import torch

    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    if bool((lengths == lengths[0]).all()):
        return batch
    mask = torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]
    return {**batch, "attention_mask": mask.long()}


# Tokenizers ----------------------------------------------------------------------------------------------


def find_tokenizer(recipe: Recipe, source: ModelSource, rows: Dataset | None, special: Mapping[str, str]) -> Any:
    """Return the model's tokenizer, or train one on `rows` if the options ask for that.

    Without rows the model has been trained already, and its tokenizer is with it.
    """
    training: TokenizerTraining | None = recipe.options.tokenizer
    if rows is None:
        if training is not None and not source.exported:
            raise UsageError("the tokenizer was trained on the rows of the run, which exports it only when it ends")
        return source.tokenizer()
    _refuse_options_of_new_models(source, recipe.options)
    if training is None:
        return source.tokenizer()
    if recipe.spec.data.streaming:
        warnings.warn(f"the tokenizer is trained on the first {len(rows)} rows of the stream", stacklevel=2)
    return _train_once(rows, training.vocab_size, special)


def _train_once(rows: Dataset, vocab_size: int, special: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer on rows, or read the one that was trained on the same rows before."""
    from importlib.metadata import version

    from taskrecipe.data.cache_text import recall_text
    from taskrecipe.data.row_digest import fingerprint

    texts = rows.select_columns(["text"])
    about = ["tokenizer", fingerprint(texts), vocab_size, dict(special), version("tokenizers")]
    written = recall_text(about, lambda: _train_backend(_iterate_texts(texts), vocab_size, special).to_str())
    return _wrap_tokenizer(written, special)


def train_tokenizer(texts: Iterable[list[str]], vocab_size: int, special: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on batches of texts. The same texts give the same tokenizer."""
    return _wrap_tokenizer(_train_backend(texts, vocab_size, special).to_str(), special)


def _wrap_tokenizer(written: str, special: Mapping[str, str]) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(written)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)  # type: ignore[no-untyped-call]


def _train_backend(texts: Iterable[list[str]], vocab_size: int, special: Mapping[str, str]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

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
    return tokenizer


def _iterate_texts(rows: Dataset) -> Iterator[list[str]]:
    for batch in rows.iter(1000):
        yield batch["text"]


def _refuse_options_of_new_models(source: ModelSource, options: LanguageOptions) -> None:
    if source.has_weights and options.tokenizer is not None:
        raise UsageError(
            f"[task.tokenizer]: the weights of {source.name} belong to its own tokenizer; "
            "set [model].pretrained = false to start from scratch, or remove [task.tokenizer]"
        )
    if source.has_weights and options.size is not None:
        raise UsageError(
            f"[task].size is {options.size!r}, but {source.name} has weights, and so a size; "
            "set [model].pretrained = false to start from scratch, or remove [task].size"
        )
    if source.processor is not None and options.tokenizer is not None:
        raise UsageError(
            f"[task.tokenizer] trains a tokenizer, and [model].processor names {source.processor!r}: keep one"
        )


# Models --------------------------------------------------------------------------------------------------


def make_config_values(source: ModelSource, options: LanguageOptions, tokenizer: Any) -> dict[str, Any]:
    """Return the configuration values that fit tokenizer, length and size; none for a model that has weights."""
    if source.has_weights:
        return {}
    config = source.config()
    values = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    values |= {"vocab_size": len(tokenizer), **_position_values(config, options.length, tokenizer)}
    values |= _size_values(config, options.size) if options.size else {}
    return {config.attribute_map.get(name, name): value for name, value in values.items() if hasattr(config, name)}


def require_model_fits(source: ModelSource, options: LanguageOptions, tokenizer: Any) -> None:
    """Raise if the tokenizer has more tokens than the model knows, or rows are longer than the model takes."""
    config = source.config(**make_config_values(source, options, tokenizer)).get_text_config()
    if len(tokenizer) > config.vocab_size:
        raise UsageError(
            f"the tokenizer has {len(tokenizer)} tokens and the model knows {config.vocab_size}; "
            "set [model].processor to the tokenizer the model was trained with"
            + (", or raise [model.config].vocab_size" if not source.has_weights else "")
        )
    limit = min(getattr(config, "max_position_embeddings", None) or math.inf, tokenizer.model_max_length)
    if options.length > limit:
        raise UsageError(f"[task].length is {options.length}; the model takes {limit:.0f} tokens at most")


def _position_values(config: Any, length: int, tokenizer: Any) -> dict[str, int]:
    # RoBERTa and similar models number positions from after the padding token.
    needed = length + (0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id + 1)
    positions = getattr(config, "max_position_embeddings", None)
    return {"max_position_embeddings": needed} if positions is not None and positions < needed else {}


def _size_values(config: Any, size: str) -> dict[str, int]:
    """Return the values that give any architecture this size, in its own proportions."""
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


def compute_mean_loss(losses: TokenLosses, labels: torch.Tensor, training: bool) -> torch.Tensor:
    """Return the mean loss over the labels that are not ignored, smoothed in training; 0 if all are ignored."""
    total = losses.total if training else losses.nll.sum()
    return total / (labels != IGNORED).sum().clamp(min=1)


def measure_rows(losses: TokenLosses, labels: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
    """Return for each row the negative log likelihood of its labels, their number, and how many are the likeliest."""
    if losses.correct is None:
        raise ValueError("`correct` is missing: it is computed in evaluation only")
    return {
        "nll": sum_by_row(losses.nll.cpu().double(), _on_cpu(batch)),  # not every accelerator has doubles
        "tokens": sum_by_row((labels != IGNORED).long(), batch),
        "correct": sum_by_row(losses.correct.long(), batch),
    }


def add_measures(pieces: Sequence[Row]) -> Row:
    """Return the measures of a text: the sums of those of its pieces."""
    return {name: math.fsum(float(piece[name]) for piece in pieces) for name in ("nll", "tokens", "correct")}


def _on_cpu(batch: Batch) -> Batch:
    return {MEMBERS: batch[MEMBERS].cpu()} if MEMBERS in batch else {}


def score_rows(measured: Mapping[str, Any]) -> dict[str, float]:
    """Return perplexity and accuracy over all tokens of a split. Every token counts the same, in rows of any length."""
    tokens = int(measured["tokens"].sum())
    if not tokens:
        return dict.fromkeys(LANGUAGE_METRICS, math.nan)
    return {
        "perplexity": compute_perplexity(math.fsum(measured["nll"]) / tokens),
        "accuracy": int(measured["correct"].sum()) / tokens,
    }


def make_language_scorer(measured: Mapping[str, Any]) -> Scorer:
    """Return a scorer of chosen rows, from what `measure_rows` returned for all."""
    sums = np.stack([np.asarray(measured[name], dtype=np.float64) for name in ("nll", "tokens", "correct")])

    def score(chosen: Any) -> dict[str, float]:
        nll, tokens, correct = sums[:, chosen].sum(1)
        loss = float(nll / tokens) if tokens else math.nan
        accuracy = float(correct / tokens) if tokens else math.nan
        return {"perplexity": compute_perplexity(loss), "accuracy": accuracy, "loss": loss}

    return score


def compute_perplexity(loss: float) -> float:
    """Return the exponential of a mean loss; infinity instead of an overflow."""
    return math.inf if loss >= 709 else math.exp(loss)
