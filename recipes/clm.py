"""Causal language modeling: every token is predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from taskrecipe import (
    IGNORED,
    PREDICT,
    Batch,
    Column,
    CutsRows,
    Direction,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    UsageError,
)
from taskrecipe.text import (
    CAUSAL_TOKENS,
    LANGUAGE_METRICS,
    TEXT_NUMBER,
    LanguageOptions,
    Ragged,
    add_attention_mask,
    add_measures,
    compute_losses,
    compute_mean_loss,
    compute_perplexity,
    drop_blank_texts,
    drop_short_rows,
    encode_texts,
    find_projection,
    find_tokenizer,
    make_config_values,
    make_dataset,
    make_language_scorer,
    make_rows,
    measure_rows,
    next_tokens,
    pack_lengths,
    pack_rows,
    require_model_fits,
    require_packs,
    run_model,
    score_rows,
    select_inputs,
    tokenize_texts,
    use_packs,
)

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource, Piece
    from taskrecipe.text import Projection, TokenLosses


class CausalOptions(LanguageOptions):
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
        "keep it as a short row, or drop it and warn of the number of tokens dropped.",
    )

    packing: bool = Field(
        default=False,
        description="For rows = 'documents': put several rows of a micro-batch into one line of up to `length` tokens "
        "instead of padding each. It saves time and doesn't change results.",
    )

    @model_validator(mode="after")
    def _only_documents_are_packed(self) -> CausalOptions:
        if self.packing and self.rows != "documents":
            raise ValueError(f"packing = true is for rows = 'documents'; rows = {self.rows!r} are full already")
        return self

    @model_validator(mode="after")
    def _only_chunks_have_a_tail(self) -> CausalOptions:
        if self.tail == "drop" and self.rows != "chunks":
            raise ValueError(f"tail = 'drop' is for rows = 'chunks'; rows = {self.rows!r} leaves no tail")
        return self


class CausalLM(Recipe, CutsRows):
    """Causal language modeling (GPT and similar models), from pretrained weights or from scratch.

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
    _training_rows: Dataset | None = None
    """What a tokenizer is trained on."""
    _projection: Projection
    """How the model makes logits."""

    @override
    def metrics(self) -> dict[str, Direction]:
        return dict(LANGUAGE_METRICS)

    @override
    def columns(self) -> dict[str, Column]:
        return {"text": Column("a document, or a line of one")}

    @override
    def sample(self, folder: Path) -> Splits:
        """Make short documents of a small grammar, with a tokenizer trained on them."""
        from transformers import GPT2Config

        from taskrecipe.text import make_sample_documents, train_tokenizer

        splits = make_sample_documents()
        train_tokenizer([splits["train"]["text"]], 1024, CAUSAL_TOKENS).save_pretrained(folder)
        config = GPT2Config(bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        config.save_pretrained(folder)
        return splits

    @override
    def learn(self, rows: Dataset) -> None:
        # The tokenizer is what is learned; it is exported with the model, so no attribute is kept.
        self._training_rows = rows

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_text

        check_text(rows, split, "text")

    @override
    def load_processor(self, source: ModelSource) -> Any:
        tokenizer = find_tokenizer(self, source, self._training_rows, CAUSAL_TOKENS)
        if self.options.separator == "eos" and tokenizer.eos_token_id is None:
            raise UsageError("the tokenizer has no end-of-text token; set [task].separator to 'newline' or 'none'")
        require_model_fits(source, self.options, tokenizer)
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        if split == PREDICT:
            return self._cut_texts(rows) if self.spec.predict.max_new_tokens is None else self._cut_prompts(rows)
        documents, length = self._tokenize_documents(rows), self.options.length
        cut = documents.chunks(length) if self.options.rows == "chunks" else documents.pieces(length)
        least = length if self.options.tail == "drop" else 2  # a single token has none before it to be predicted from
        columns = drop_short_rows({"input_ids": cut}, split, least)
        if self.options.rows == "packs":
            columns = _pack_pieces(columns["input_ids"], length)
        return make_rows(columns, split, self.spec.data.streaming)

    @override
    def collate(self, rows: list[Row]) -> Batch:
        # Labels are the tokens themselves; the loss moves them by one.
        labeled = [{**row, "labels": row["input_ids"]} for row in rows]
        for row in labeled:
            row.pop(TEXT_NUMBER, None)
        if self.options.packing:
            return pack_rows(labeled, self.options.length, self.padding()["input_ids"])
        batch = super().collate(labeled)
        if "position_ids" not in batch:
            return add_attention_mask(batch, rows)
        # Where the position is 0 a document begins: there is nothing to predict its first token from.
        return {**batch, "labels": batch["labels"].masked_fill(batch["position_ids"] == 0, IGNORED)}

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForCausalLM

        values = make_config_values(source, self.options, self.processor)
        model = source.model(AutoModelForCausalLM, **values)
        if self.options.packing or self.options.rows == "packs":
            key = "[task].packing = true" if self.options.packing else "[task].rows = 'packs'"
            require_packs(model, key, self.options.length)
        self._projection = find_projection(model)
        made: torch.nn.Module = model
        return made

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> TokenLosses:
        from taskrecipe import use_documents  # needs torch

        inputs = select_inputs(batch)
        labels, smoothing = next_tokens(batch), self.spec.train.label_smoothing

        def compute(projection: Projection, hidden: torch.Tensor) -> TokenLosses:
            return compute_losses(projection, hidden, labels, smoothing, correct=not model.training)

        with use_documents(*_find_documents(batch)) if "documents" in batch else use_packs(batch):
            losses: TokenLosses = run_model(model, inputs, self._projection, compute)
        return losses

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float((batch["labels"][:, 1:] != IGNORED).sum())}  # nothing predicts the first token

    @override
    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        return {"loss": compute_mean_loss(outputs, next_tokens(batch), training)}

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        # The labels are the input tokens: there is no target column, so rows to predict have them too.
        # Three numbers a row are enough for perplexity, however large the vocabulary is.
        return dict(measure_rows(outputs, next_tokens(batch), batch))

    @override
    def infer(self, model: torch.nn.Module, batch: Batch) -> Predictions:
        """Generate what follows each text if `[predict].max_new_tokens` says so; else measure how likely it is."""
        if self.spec.predict.max_new_tokens is None:
            return super().infer(model, batch)
        from taskrecipe.text import Generation, generate_tokens

        ids, mask = _pad_left(batch["input_ids"], batch.get("attention_mask"))
        end = self.processor.eos_token_id
        pad = end if self.processor.pad_token_id is None else self.processor.pad_token_id
        settings = self.spec.predict
        how = Generation(settings, settings.max_new_tokens or 1, settings.beams or 1, self.spec.seed, pad or 0, end)
        generated = generate_tokens(model, ids, mask, how)[:, ids.shape[1] :]
        return {"continuation": self.processor.batch_decode(generated, skip_special_tokens=True)}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        return score_rows(predictions)

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        if "continuation" in prediction:
            return {"continuation": prediction["continuation"]}
        tokens = int(prediction["tokens"])
        loss = float(prediction["nll"]) / tokens
        return {"loss": loss, "perplexity": compute_perplexity(loss), "tokens": tokens}

    @override
    def owners(self, rows: Dataset) -> Sequence[int] | None:
        """Only texts to predict are cut each for itself."""
        return rows[TEXT_NUMBER] if TEXT_NUMBER in rows.column_names else None

    @override
    def merge(self, predictions: list[Row], rows: list[Row]) -> tuple[Row, Row]:
        """Add up the losses of the pieces of a text. A text to go on from is one piece."""
        tokens = [token for row in rows for token in row["input_ids"]]
        return predictions[0] if len(rows) == 1 else add_measures(predictions), {"input_ids": tokens}

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        return make_language_scorer(predictions)

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        return Judgment(loss=float(prediction["nll"]) / max(int(prediction["tokens"]), 1))

    @override
    def describe(self, example: Row) -> DescribedText:
        """Show each document of a row on a line of its own. All tokens but its first are trained."""
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens

        pieces = describe_tokens(example["input_ids"], self.processor)
        positions = example.get("position_ids", range(len(pieces)))
        starts = [place for place, position in enumerate(positions) if position == 0]
        ends = [*starts[1:], len(pieces)]
        lines = [_mark_trained(pieces[a:b]) for a, b in zip(starts, ends, strict=True)]
        names = [f"document {number}" for number in range(1, len(lines) + 1)] if len(lines) > 1 else []
        return DescribedText(lines, names=names, joined=True)

    def _cut_texts(self, rows: Dataset) -> Dataset:
        """Cut each text for itself. Blank ones may have no piece."""
        documents, length = self._tokenize_documents(rows, keep_blank=True), self.options.length
        pieces = documents.pieces(length)
        kept = pieces.lengths > 1  # a single token has none before it to be predicted from
        owners = documents.piece_owners(length)[kept]
        return make_dataset({"input_ids": pieces.keep(kept)}).add_column(TEXT_NUMBER, owners)

    def _cut_prompts(self, rows: Dataset) -> Dataset:
        """Cut each text at its beginning, so that there is room for what follows. It has no end token."""
        room = max(1, self.options.length - (self.spec.predict.max_new_tokens or 0))
        prompts = tokenize_texts(rows, self._encode_prompts)["input_ids"]
        cut = [prompts.values[max(end - room, start) : end] for start, end in pairwise(prompts.offsets)]
        return make_dataset({"input_ids": Ragged.of(cut)}).add_column(TEXT_NUMBER, np.arange(len(cut)))

    def _tokenize_documents(self, rows: Dataset, *, keep_blank: bool = False) -> Ragged:
        ends = [self.processor.eos_token_id] if self.options.separator == "eos" else []
        texts = rows if self._texts_are_lines or keep_blank else drop_blank_texts(rows)
        return tokenize_texts(texts, self._encode)["input_ids"].wrap([], ends)

    def _encode(self, texts: list[str]) -> dict[str, list[Any]]:
        if self.options.separator == "newline":
            texts = [f"{text}\n" for text in texts]
        return {"input_ids": encode_texts(self.processor, texts, special=not self._texts_are_lines)["input_ids"]}

    def _encode_prompts(self, texts: list[str]) -> dict[str, list[Any]]:
        special = not self._texts_are_lines
        tokens = self.processor(texts, add_special_tokens=special, return_attention_mask=False, verbose=False)
        start = [self.processor.bos_token_id or self.processor.eos_token_id or 0]  # nothing to go on from
        return {"input_ids": [ids or start for ids in tokens["input_ids"]]}

    @property
    def _texts_are_lines(self) -> bool:
        """Whether texts are lines of one document: then blank lines count, and no line gets a beginning token."""
        return self.options.rows == "chunks" and self.options.separator != "eos"


def _pack_pieces(pieces: Ragged, length: int) -> dict[str, Ragged]:
    """Put pieces together into rows, with positions that restart at each piece, and with the pieces' numbers."""
    packs = pack_lengths(pieces.lengths, length)
    ordered = pieces.take([number for members in packs for number in members])
    sizes = np.array([len(members) for members in packs], dtype=np.int64)
    return {
        "input_ids": ordered.join(sizes),
        "position_ids": ordered.positions().join(sizes),
        "documents": Ragged.of(packs),
    }


def _find_documents(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of each token's document, as if it were a row of its own, and its position there."""
    numbers, positions = batch["documents"], batch["position_ids"]
    place = (positions == 0).cumsum(1) - 1  # padding begins a document at each position
    return numbers.gather(1, place.clamp(max=numbers.shape[1] - 1)).long(), positions.long()


def _pad_left(ids: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Move the padding of prompts before them: what follows a text must follow its last token."""
    import torch

    if mask is None:
        return ids, torch.ones_like(ids)
    order = mask.argsort(dim=1, stable=True)
    return ids.gather(1, order), mask.gather(1, order)


def _mark_trained(document: list[Piece]) -> list[Piece]:
    first, *others = document
    return [first, *(replace(piece, role="trained") for piece in others)]
