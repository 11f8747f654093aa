"""Masked language modeling: hidden tokens are predicted from those around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
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
    LANGUAGE_METRICS,
    MASKED_TOKENS,
    TEXT_NUMBER,
    LanguageOptions,
    Ragged,
    add_attention_mask,
    add_measures,
    compute_losses,
    compute_mean_loss,
    drop_blank_texts,
    drop_short_rows,
    encode_texts,
    find_likeliest,
    find_projection,
    find_tokenizer,
    make_config_values,
    make_dataset,
    make_language_scorer,
    make_rows,
    measure_rows,
    require_model_fits,
    run_model,
    score_rows,
    tokenize_texts,
)

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource, Piece
    from taskrecipe.text import Projection, TokenLosses

HIDDEN, REPLACED = 0.8, 0.1
"""The shares of the tokens to predict that become the mask token and a random token; the others stay."""

WORD_MARKS = ("Ġ", "▁")
"""How the first token of a word begins in byte-level and sentencepiece vocabularies."""

FILLINGS = 5
"""How many of the likeliest tokens are kept for each mask token."""


class MaskedOptions(LanguageOptions):
    """Options of `mlm`."""

    rows: Literal["chunks", "documents"] = Field(
        default="chunks",
        description="What a row is: a chunk of all texts joined, or one text (line by line). "
        "Texts longer than a row are cut into pieces, blank ones are left out.",
    )
    masked: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(default=0.15, description="Share of the tokens to predict.")
    whole_words: bool = Field(default=False, description="Choose whole words instead of single tokens.")


@dataclass
class MaskedOutputs:
    """The losses of the hidden tokens; in evaluation also the likeliest tokens in place of each mask token."""

    losses: TokenLosses
    fillings: torch.Tensor | None = None
    probabilities: torch.Tensor | None = None


class MaskedLM(Recipe, CutsRows):
    """Masked language modeling (BERT, RoBERTa and similar models), from pretrained weights or from scratch.

    Of the tokens (or whole words) to predict, 80 % are seen as the mask token, 10 % as a random one, and 10 % as they
    are. In training others are drawn in every epoch; in evaluation they stay the same, so that metrics can be
    compared. If a text to predict has mask tokens itself, only those are filled in. From scratch as in `clm`:
    `[model].type`, `[task].size`, `[task.tokenizer]`.
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
        """Make short documents of a small grammar, with a tokenizer that knows its words."""
        from taskrecipe.text import grammar_words, make_sample_documents, write_tiny_bert

        write_tiny_bert(folder, grammar_words(), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return make_sample_documents()

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
        tokenizer = find_tokenizer(self, source, self._training_rows, MASKED_TOKENS)
        if tokenizer.mask_token_id is None:
            raise UsageError("the tokenizer has no mask token; use recipe 'clm', or [task.tokenizer] to train one")
        if self.options.whole_words and not tokenizer.is_fast:
            raise UsageError("[task].whole_words needs a fast tokenizer, which knows where words begin")
        require_model_fits(source, self.options, tokenizer)
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        if split == PREDICT:
            return self._cut_texts(rows)
        texts = tokenize_texts(drop_blank_texts(rows), self._encode)
        if self.options.rows == "documents":
            texts = drop_short_rows(texts, split, 1)
        columns = {"input_ids": self._cut(texts["input_ids"], *self._special)}
        if self.options.whole_words:  # a special token is a word of its own
            columns["starts"] = self._cut(texts["starts"], *([1] * len(tokens) for tokens in self._special))
        return make_rows(columns, split, self.spec.data.streaming)

    @override
    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """Hide some of the tokens, which become the labels."""
        ids, mask = np.array(row["input_ids"]), self.processor.mask_token_id
        if not training and (ids == mask).any():  # a text with blanks to fill in: hiding more would make that harder
            return {"input_ids": ids, "labels": np.full_like(ids, IGNORED)}
        chosen = self._choose(ids, row.get("starts"), random)
        fate = random.random(len(ids))
        others = self._words[random.integers(len(self._words), size=len(ids))]
        seen = np.where(fate < HIDDEN, mask, np.where(fate < HIDDEN + REPLACED, others, ids))
        return {"input_ids": np.where(chosen, seen, ids), "labels": np.where(chosen, ids, IGNORED)}

    @override
    def collate(self, rows: list[Row]) -> Batch:
        return add_attention_mask(super().collate(rows), rows)

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForMaskedLM

        values = make_config_values(source, self.options, self.processor)
        model: torch.nn.Module = source.model(AutoModelForMaskedLM, **values)
        self._projection = find_projection(model)
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> MaskedOutputs:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        outputs: MaskedOutputs = run_model(
            model, inputs, self._projection, lambda layer, hidden: self._project(layer, hidden, batch, model.training)
        )
        return outputs

    @override
    def loss(self, outputs: MaskedOutputs, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        return {"loss": compute_mean_loss(outputs.losses, batch["labels"], training)}

    @override
    def predict(self, outputs: MaskedOutputs, batch: Batch) -> Predictions:
        # There is no target column: `example` draws the labels from the input, so rows to predict have them too.
        measured = measure_rows(outputs.losses, batch["labels"], batch)
        return {**measured, **_split_fillings(outputs, batch["input_ids"] == self.processor.mask_token_id)}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        return score_rows(predictions)

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        """Return the fillings of all masks in a text, and the text with the best of each filled in."""
        found = zip(prediction["positions"], prediction["fillings"], prediction["probabilities"], strict=True)
        masked = [self._answer_mask(int(place), row, *best) for place, *best in found]
        return {"text": self._decode(self._fill_in(prediction, row)), "masked": masked}

    @override
    def owners(self, rows: Dataset) -> Sequence[int] | None:
        """Only texts to predict are cut each for itself."""
        return rows[TEXT_NUMBER] if TEXT_NUMBER in rows.column_names else None

    @override
    def merge(self, predictions: list[Row], rows: list[Row]) -> tuple[Row, Row]:
        """Join the pieces of a text, as if the model had taken it whole."""
        before, _, after = self._special
        pieces = [row["input_ids"][len(before) : len(row["input_ids"]) - len(after)] for row in rows]
        starts = accumulate(map(len, pieces[:-1]), initial=0)
        places = [start + place for start, one in zip(starts, predictions, strict=True) for place in one["positions"]]
        names = ("fillings", "probabilities")
        masks = {name: [value for one in predictions for value in one[name]] for name in names}
        tokens = [*before, *chain.from_iterable(pieces), *after]
        return {**add_measures(predictions), **masks, "positions": places}, {"input_ids": tokens}

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        return make_language_scorer(predictions)

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        """Return the hidden tokens. A row with mask tokens of its own hides none."""
        places = [int(place) for place in prediction["positions"]]
        hidden = [
            {"position": place, "token": self.processor.decode([row["input_ids"][place]])}
            for place in places
            if row["input_ids"][place] != self.processor.mask_token_id
        ]
        tokens = int(prediction["tokens"])
        right = {"text": self._decode(row["input_ids"]), "masked": hidden}
        return Judgment(right, loss=float(prediction["nll"]) / tokens if tokens else None)

    @override
    def describe(self, example: Row) -> DescribedText:
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens

        pieces = describe_tokens(example["input_ids"], self.processor)
        rows = zip(pieces, example["input_ids"], example["labels"], strict=True)
        return DescribedText([[self._describe_token(piece, int(seen), int(label)) for piece, seen, label in rows]])

    def _answer_mask(self, place: int, row: Row, fillings: Any, probabilities: Any) -> dict[str, Any]:
        hidden = row["input_ids"][place]  # a row with mask tokens of its own hides nothing
        known = {} if hidden == self.processor.mask_token_id else {"hidden": self.processor.decode([hidden])}
        best = [
            {"token": self.processor.decode([int(token)]), "probability": float(probability)}
            for token, probability in zip(fillings, probabilities, strict=True)
        ]
        return {"position": place, **known, "fillings": best}

    def _fill_in(self, prediction: Row, piece: Row) -> list[int]:
        ids = list(piece["input_ids"])
        for place, fillings in zip(prediction["positions"], prediction["fillings"], strict=True):
            ids[int(place)] = int(fillings[0])
        return ids

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.processor.decode(tokens, skip_special_tokens=True)
        return text

    def _describe_token(self, piece: Piece, seen: int, label: int) -> Piece:
        if label != IGNORED:
            return replace(piece, role="masked", note=str(self.processor.convert_ids_to_tokens(label)))
        return replace(piece, role="masked") if seen == self.processor.mask_token_id else piece

    def _project(self, projection: Projection, hidden: torch.Tensor, batch: Batch, training: bool) -> MaskedOutputs:
        smoothing = self.spec.train.label_smoothing
        losses = compute_losses(projection, hidden, batch["labels"], smoothing, correct=not training)
        if training:
            return MaskedOutputs(losses)
        masked = hidden[batch["input_ids"] == self.processor.mask_token_id]
        return MaskedOutputs(losses, *find_likeliest(projection, masked, FILLINGS))

    # Rows -------------------------------------------------------------------------------------------

    def _encode(self, texts: list[str]) -> dict[str, list[Any]]:
        if not self.options.whole_words:
            return {"input_ids": encode_texts(self.processor, texts, special=False)["input_ids"]}
        tokens = self.processor(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        starts = [self._word_starts(encoding) for encoding in tokens.encodings]
        return {"input_ids": tokens["input_ids"], "starts": starts}

    def _word_starts(self, encoding: Any) -> NDArray[np.uint8]:
        """Return 1 where a token begins a word, as the tokenizer says or as the token's first character shows."""
        # Some tokenizers mark the beginning of words but report a whole text as one word.
        words = np.array(encoding.word_ids, dtype=float)
        starts = self._marked[np.array(encoding.ids, dtype=np.int64)]
        starts[:1] = True
        starts[1:] |= np.diff(words) != 0
        return starts.astype(np.uint8)

    def _cut_texts(self, rows: Dataset) -> Dataset:
        """Cut each text for itself, at as many tokens as the model takes. Blank ones have no piece."""
        texts, (before, _, after) = tokenize_texts(rows, self._encode), self._special
        room = self.options.length - len(before) - len(after)
        columns = {"input_ids": texts["input_ids"].pieces(room).wrap(before, after)}
        if self.options.whole_words:
            columns["starts"] = texts["starts"].pieces(room).wrap([1] * len(before), [1] * len(after))
        return make_dataset(columns).add_column(TEXT_NUMBER, texts["input_ids"].piece_owners(room))

    def _cut(self, texts: Ragged, before: list[int], between: list[int], after: list[int]) -> Ragged:
        length = self.options.length - len(before) - len(after)
        if self.options.rows == "documents":
            return texts.pieces(length).wrap(before, after)
        return texts.wrap([], between).chunks(length).wrap(before, after)

    def _choose(
        self, ids: NDArray[np.int64], starts: NDArray[np.uint8] | None, random: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Choose the tokens to predict: each token or word with the same probability, and always at least one."""
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
        """The tokens that can replace another."""
        return np.flatnonzero(self._maskable)

    @cached_property
    def _marked(self) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary is marked as the beginning of a word."""
        marked = np.zeros(len(self.processor), dtype=bool)
        marked[[i for token, i in self.processor.get_vocab().items() if token.startswith(WORD_MARKS)]] = True
        return marked


def _split_fillings(outputs: MaskedOutputs, masked: torch.Tensor) -> Predictions:
    """Return for each row the positions of its mask tokens, and the likeliest tokens there with their probabilities.

    Only mask tokens have values, so that an evaluation keeps a few numbers for each of them.
    """
    ends = masked.sum(-1).cumsum(0)[:-1].tolist()
    values = {
        "positions": masked.nonzero()[:, 1].int(),
        "fillings": outputs.fillings,
        "probabilities": outputs.probabilities,
    }
    return {name: np.split(value.cpu().numpy(), ends) for name, value in values.items() if value is not None}
