"""Causal language modelling: every token predicted from those before it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from pydantic import Field, model_validator

from taskrecipe.core.errors import UsageError
from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits
from taskrecipe.recipes import language
from taskrecipe.recipes.tokens import Ragged, pack

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource


class CausalOptions(language.LanguageOptions):
    """Options of `clm`."""

    rows: Literal["chunks", "packs", "documents"] = Field(
        default="chunks",
        description="What a row is: a chunk of all texts joined; a pack of several whole documents that don't see one "
        "another; or one document. Documents longer than a row are cut into pieces, blank ones are left out.",
    )
    separator: Literal["eos", "newline", "none"] = Field(
        default="eos",
        description="What ends each text: the end-of-text token; a line break, where texts are lines; or nothing.",
    )
    tail: Literal["keep", "drop"] = Field(
        default="keep",
        description="The last chunk of a split (of each block of rows, when streaming), which is short: "
        "keep it as a short row, or drop it and say how many tokens that was.",
    )

    @model_validator(mode="after")
    def _only_chunks_have_a_tail(self) -> CausalOptions:
        if self.tail == "drop" and self.rows != "chunks":
            raise ValueError(f"tail = 'drop' is for rows = 'chunks'; rows = {self.rows!r} leaves no tail")
        return self


class CausalLM(Recipe):
    """Causal language modelling (GPT and its kin), from pretrained weights or from scratch.

    Texts are joined and cut into chunks, or packed whole into rows with positions that restart and attention that
    stays within a document. From scratch: `[model].type` (or `pretrained = false`) with `[task].size` or
    `[model.config]`, and `[task.tokenizer]` to train a tokenizer on the data. Perplexity is the exponential of the
    mean loss over all tokens of a split.
    """

    Options = CausalOptions
    options: CausalOptions
    smooths_labels = True
    sample_settings: ClassVar = {
        "task.length": 64,
        "task.size": "tiny",
        "task.separator": "eos",
        "train.epochs": 6,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "train.learning_rate": 5e-3,
        "schedule.warmup": 0.1,
    }

    def metrics(self) -> dict[str, Direction]:
        """Perplexity, and how often the likeliest token is the right one."""
        return dict(language.METRICS)

    def columns(self) -> dict[str, Column]:
        """The text."""
        return {"text": Column("a document, or a line of one")}

    def sample(self, folder: Path) -> Splits:
        """Short documents of a small grammar, with a tokenizer trained on them."""
        from transformers import GPT2Config

        from taskrecipe.recipes.grammar import sample_splits

        splits = sample_splits()
        tokenizer = language.train_tokenizer([splits["train"]["text"]], 1024, language.CAUSAL_TOKENS)
        tokenizer.save_pretrained(folder)
        GPT2Config(bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).save_pretrained(
            folder
        )
        return splits

    def check(self, splits: Splits) -> None:
        """Every text must be one, and some must hold something."""
        language.check_texts(splits)
        self._corpus = splits["train"]

    def load_processor(self, source: ModelSource) -> Any:
        """The model's tokenizer, or one trained on the training rows."""
        tokenizer = language.find_tokenizer(self, source, self._corpus, language.CAUSAL_TOKENS)
        if self.options.separator == "eos" and tokenizer.eos_token_id is None:
            raise UsageError("the tokenizer has no end-of-text token; set [task].separator to 'newline' or 'none'")
        language.require_fit(source, self.options, tokenizer)
        return tokenizer

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize, and cut into rows."""
        documents, length = self._documents(rows), self.options.length
        cut = documents.chunks(length) if self.options.rows == "chunks" else documents.pieces(length)
        least = length if self.options.tail == "drop" else 2  # one token alone has none to be predicted from
        columns = language.without_short({"input_ids": cut}, split, least)
        if self.options.rows == "packs":
            columns = _packed(columns["input_ids"], length)
        return language.finished(columns, split, self.spec.data.streaming)

    def collate(self, rows: list[Row]) -> Batch:
        """Pad on the right; labels are the tokens themselves, which the loss moves by one."""
        batch = super().collate([{**row, "labels": row["input_ids"]} for row in rows])
        if "position_ids" not in batch:
            return language.mask_padding(batch, rows)
        # Where the position is 0 a document begins: there is nothing to predict its first token from.
        return {**batch, "labels": batch["labels"].masked_fill(batch["position_ids"] == 0, language.IGNORED)}

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A causal model; where documents are packed, one that is seen to keep them apart."""
        from transformers import AutoModelForCausalLM

        values = language.config_values(source, self.options, self.processor)
        model = source.model(AutoModelForCausalLM, **values)
        if self.options.rows == "packs" and not keeps_documents_apart(model):
            raise UsageError(
                f"[task].rows = 'packs': a {model.config.model_type} model attends from one packed document to "
                "another; use 'documents' or 'chunks', or another architecture (gpt2, llama, qwen2, mistral …)"
            )
        return cast("torch.nn.Module", model)

    def weights(self, batch: Batch) -> dict[str, float]:
        """The tokens that are predicted: all but the first of each row or document."""
        return {"loss": float((batch["labels"][:, 1:] != language.IGNORED).sum())}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """Cross entropy of each next token."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        outputs = model(**inputs, use_cache=False)  # with a cache, packed documents are not told apart
        smoothing = self.spec.train.label_smoothing if model.training else 0.0
        return Loss({"loss": language.mean_loss(outputs.logits, _next_tokens(batch), smoothing)}, outputs)

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """Each row's likelihood and counts: what perplexity is made of, whatever the vocabulary's size."""
        return dict(language.row_numbers(outputs.logits, _next_tokens(batch)))

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """Perplexity and accuracy over all tokens."""
        return language.score(predictions)

    def _documents(self, rows: Dataset) -> Ragged:
        """The tokens of each text, with what ends it."""
        ends = [self.processor.eos_token_id] if self.options.separator == "eos" else []
        texts = rows if self._are_lines else language.without_blanks(rows)
        return language.tokenize(texts, self._encode)["input_ids"].wrap([], ends)

    def _encode(self, texts: list[str]) -> language.Columns:
        if self.options.separator == "newline":
            texts = [f"{text}\n" for text in texts]
        special = not self._are_lines
        tokens = self.processor(texts, add_special_tokens=special, return_attention_mask=False, verbose=False)
        return {"input_ids": tokens["input_ids"]}

    @property
    def _are_lines(self) -> bool:
        """Whether texts are lines of one: blank ones count then, and none has a beginning of its own to be marked."""
        return self.options.rows == "chunks" and self.options.separator != "eos"


def keeps_documents_apart(model: Any) -> bool:
    """Whether a model, seeing where positions restart, lets no document of a row look at an earlier one."""
    import torch

    documents = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [4, 3, 2, 1, 5, 6, 7, 8]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]).expand_as(documents)
    training = model.training
    with torch.no_grad():
        logits = model.eval()(input_ids=documents, position_ids=positions, use_cache=False).logits
    model.train(training)
    return torch.equal(logits[0, 4:], logits[1, 4:])


def _packed(pieces: Ragged, length: int) -> dict[str, Ragged]:
    """Pieces put together into rows, and the positions that tell them apart."""
    packs = pack(pieces.lengths, length)
    ordered = pieces.take([number for members in packs for number in members])
    sizes = np.array([len(members) for members in packs], dtype=np.int64)
    return {"input_ids": ordered.join(sizes), "position_ids": ordered.positions().join(sizes)}


def _next_tokens(batch: Batch) -> torch.Tensor:
    """The label of each position: the token after it."""
    from torch.nn.functional import pad

    # Labels are moved instead of logits, which would have to be copied for it.
    return pad(batch["labels"][:, 1:], (0, 1), value=language.IGNORED)
