"""Masked language modelling: hidden tokens predicted from those around them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from taskrecipe.core.errors import UsageError
from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits
from taskrecipe.recipes import language
from taskrecipe.recipes.tokens import Ragged

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

HIDDEN, REPLACED = 0.8, 0.1
"""Of the tokens to predict, the share seen as the mask token and the share seen as a random one; the rest stays."""

WORD_MARKS = ("Ġ", "▁")
"""What byte-level and sentencepiece vocabularies begin a word with."""


class MaskedOptions(language.LanguageOptions):
    """Options of `mlm`."""

    rows: Literal["chunks", "documents"] = Field(
        default="chunks",
        description="What a row is: a chunk of all texts joined, or one text (line by line). "
        "Texts longer than a row are cut into pieces, blank ones are left out.",
    )
    masked: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(default=0.15, description="Share of the tokens to predict.")
    whole_words: bool = Field(default=False, description="Choose whole words instead of single tokens.")


class MaskedLM(Recipe):
    """Masked language modelling (BERT, RoBERTa and their kin), from pretrained weights or from scratch.

    Of the tokens (or whole words) to predict, 80 % are seen as the mask token, 10 % as a random one, and 10 % as they
    are. In training they are drawn anew every epoch; in evaluation they stay the same, so that numbers compare. From
    scratch as in `clm`: `[model].type`, `[task].size`, `[task.tokenizer]`.
    """

    Options = MaskedOptions
    options: MaskedOptions
    smooths_labels = True
    sample_settings: ClassVar = {
        "task.length": 64,
        "task.rows": "documents",
        "task.size": "tiny",
        "train.epochs": 12,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "train.learning_rate": 3e-3,
        "schedule.warmup": 0.1,
    }

    def metrics(self) -> dict[str, Direction]:
        """Perplexity of the masked tokens, and how often the likeliest token is the right one."""
        return dict(language.METRICS)

    def columns(self) -> dict[str, Column]:
        """The text."""
        return {"text": Column("a document, or a line of one")}

    def sample(self, folder: Path) -> Splits:
        """Short documents of a small grammar, with a tokenizer that knows its words."""
        from taskrecipe.core.sample_text import write_tiny_bert
        from taskrecipe.recipes.grammar import sample_splits, words

        write_tiny_bert(folder, words(), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return sample_splits()

    def check(self, splits: Splits) -> None:
        """Every text must be one, and some must hold something."""
        language.check_texts(splits)
        self._corpus = splits["train"]

    def load_processor(self, source: ModelSource) -> Any:
        """The model's tokenizer, or one trained on the training rows."""
        tokenizer = language.find_tokenizer(self, source, self._corpus, language.MASKED_TOKENS)
        if tokenizer.mask_token_id is None:
            raise UsageError("the tokenizer has no mask token; use recipe 'clm', or [task.tokenizer] to train one")
        if self.options.whole_words and not tokenizer.is_fast:
            raise UsageError("[task].whole_words needs a fast tokenizer, which knows where words begin")
        language.require_fit(source, self.options, tokenizer)
        return tokenizer

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize, cut into rows, and put what a model expects before and after each."""
        texts = language.tokenize(language.without_blanks(rows), self._encode)
        if self.options.rows == "documents":
            texts = language.without_short(texts, split, 1)
        columns = {"input_ids": self._cut(texts["input_ids"], *self._special)}
        if self.options.whole_words:  # a special token is a word of its own
            columns["starts"] = self._cut(texts["starts"], *([1] * len(tokens) for tokens in self._special))
        return language.finished(columns, split, self.spec.data.streaming)

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Hide some of the tokens: those are the labels."""
        ids = np.array(row["input_ids"])
        chosen = self._choose(ids, row.get("starts"), random)
        fate = random.random(len(ids))
        others = self._words[random.integers(len(self._words), size=len(ids))]
        seen = np.where(fate < HIDDEN, self.processor.mask_token_id, np.where(fate < HIDDEN + REPLACED, others, ids))
        return {"input_ids": np.where(chosen, seen, ids), "labels": np.where(chosen, ids, language.IGNORED)}

    def collate(self, rows: list[Row]) -> Batch:
        """Pad on the right."""
        return language.mask_padding(super().collate(rows), rows)

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A model with a head for masked tokens."""
        from transformers import AutoModelForMaskedLM

        values = language.config_values(source, self.options, self.processor)
        model: torch.nn.Module = source.model(AutoModelForMaskedLM, **values)
        return model

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """Cross entropy of the hidden tokens."""
        outputs = model(**{name: value for name, value in batch.items() if name != "labels"})
        smoothing = self.spec.train.label_smoothing if model.training else 0.0
        return Loss({"loss": language.mean_loss(outputs.logits, batch["labels"], smoothing)}, outputs)

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """Each row's likelihood and counts: what perplexity is made of, whatever the vocabulary's size."""
        return dict(language.row_numbers(outputs.logits, batch["labels"]))

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """Perplexity and accuracy over all hidden tokens."""
        return language.score(predictions)

    # Rows -------------------------------------------------------------------------------------------

    def _encode(self, texts: list[str]) -> dict[str, list[Any]]:
        tokens = self.processor(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        if not self.options.whole_words:
            return {"input_ids": tokens["input_ids"]}
        starts = [self._word_starts(encoding) for encoding in tokens.encodings]
        return {"input_ids": tokens["input_ids"], "starts": starts}

    def _word_starts(self, encoding: Any) -> NDArray[np.uint8]:
        """1 where a token begins a word, by the tokenizer's own account or by the mark it bears."""
        # Some tokenizers have marks but take a whole text for one word.
        words = np.array(encoding.word_ids, dtype=float)
        starts = self._marked[np.array(encoding.ids, dtype=np.int64)]
        starts[:1] = True
        starts[1:] |= np.diff(words) != 0
        return starts.astype(np.uint8)

    def _cut(self, texts: Ragged, before: list[int], between: list[int], after: list[int]) -> Ragged:
        length = self.options.length - len(before) - len(after)
        if self.options.rows == "documents":
            return texts.pieces(length).wrap(before, after)
        return texts.wrap([], between).chunks(length).wrap(before, after)

    def _choose(
        self, ids: NDArray[np.int64], starts: NDArray[np.uint8] | None, random: np.random.Generator
    ) -> NDArray[np.bool_]:
        """The tokens to predict: each, or each word, with the same probability, but always at least one."""
        words = np.arange(len(ids)) if starts is None else np.cumsum(starts)
        draws = np.where(self._maskable[ids], random.random(words[-1] + 1)[words], 1.0)
        chosen: NDArray[np.bool_] = (draws < self.options.masked) | ((draws == draws.min()) & (draws < 1.0))
        return chosen

    @cached_property
    def _special(self) -> tuple[list[int], list[int], list[int]]:
        """The tokens before a row, between two texts of it, and after it."""
        probe = self.processor("a", return_special_tokens_mask=True)
        inner = np.flatnonzero(np.array(probe["special_tokens_mask"]) == 0)
        separator = self.processor.sep_token_id
        ids = probe["input_ids"]
        return ids[: inner[0]], [] if separator is None else [separator], ids[inner[-1] + 1 :]

    @cached_property
    def _maskable(self) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary can be hidden: all but the special ones."""
        maskable = np.ones(len(self.processor), dtype=bool)
        maskable[[i for i in self.processor.all_special_ids if i != self.processor.unk_token_id]] = False
        return maskable

    @cached_property
    def _words(self) -> NDArray[np.int64]:
        """The tokens that can stand in for another."""
        return np.flatnonzero(self._maskable)

    @cached_property
    def _marked(self) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary bears the mark of a word's beginning."""
        marked = np.zeros(len(self.processor), dtype=bool)
        marked[[i for token, i in self.processor.get_vocab().items() if token.startswith(WORD_MARKS)]] = True
        return marked
