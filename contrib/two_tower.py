"""Two towers: texts become vectors, and texts that belong together become similar vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from taskrecipe import (
    PREDICT,
    Batch,
    Column,
    ComputesUpdate,
    Count,
    DataError,
    Direction,
    EmbedsRows,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    TaskOptions,
)

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource, Update

SIDES = ("text1", "text2")

_SAME = 1e-6
"""Cosines closer than this count as equal: those of the same text in another batch may differ in their last bits."""


class TwoTowerOptions(TaskOptions):
    """Options of `two_tower`."""

    objective: Literal["contrastive", "cosine"] = Field(
        default="contrastive",
        description="contrastive: find the partner among all texts of the update; cosine: be as similar as the score.",
    )
    self_pairs: bool = Field(
        default=False,
        description="Train on text1 alone: each text is its own partner, with different dropout (SimCSE).",
    )
    pooling: Literal["mean", "cls"] = Field(
        default="mean", description="How tokens become one vector: their mean, or the first one's."
    )
    shared: bool = Field(default=True, description="One encoder for both texts; false: one for each.")
    temperature: float = Field(
        default=0.05, gt=0.0, le=100.0, description="What cosines are divided by in the contrastive loss."
    )
    score_max: float = Field(
        default=5.0, gt=0.0, le=1e6, description="The score of texts that mean the same; scores begin at 0."
    )
    recall_at: list[Count] = Field(
        default=[1, 10], min_length=1, max_length=10, description="The k of recall@k: found among the k most similar."
    )
    max_length: Count = Field(default=128, le=1_000_000, description="Tokens that a text is truncated to.")

    @model_validator(mode="after")
    def _self_pairs_contrast(self) -> TwoTowerOptions:
        if self.self_pairs and self.objective == "cosine":
            raise ValueError(
                "'self_pairs' is for objective = \"contrastive\": a text and itself have no score to learn"
            )
        return self


class TwoTower(Recipe, ComputesUpdate, EmbedsRows):
    """Text embeddings from pairs: similarity, retrieval, and SimCSE.

    Two texts go through one encoder or two, and become vectors that are compared by their cosine. With the
    contrastive objective every text must find its partner among all texts of the update, over any number of
    micro-batches and processes: all vectors are computed first, and then the gradients of each micro-batch, so memory
    is that of one micro-batch. It is evaluated by mrr and recall@k over the whole split. With the cosine objective, or
    with self-pairs, evaluated rows have a score, and Spearman's and Pearson's correlation with it are reported. The
    exported model is the encoder itself.
    """

    Options = TwoTowerOptions
    uses_all_weights = False  # encoders often have a last layer, such as a pooler, that is not used here
    options: TwoTowerOptions
    learned = ()
    length_options: ClassVar = {"max_length": "input_ids"}
    sample_settings: ClassVar = {
        "train.learning_rate": 1e-3,
        "train.epochs": 3,
        "train.batch_size": 32,
        "train.accumulate": 1,
    }

    @property
    def scored(self) -> bool:
        """Whether evaluated rows have a score; if not, they are pairs to be found."""
        return self.options.objective == "cosine" or self.options.self_pairs

    @property
    @override
    def whole_update(self) -> bool:
        return self.options.objective == "contrastive"

    @override
    def metrics(self) -> dict[str, Direction]:
        if self.scored:
            return {"spearman": "max", "pearson": "max"}
        return dict.fromkeys(["mrr", *(f"recall@{k}" for k in self.options.recall_at)], "max")

    @override
    def columns(self) -> dict[str, Column]:
        own = self.options.self_pairs  # only evaluated rows have all columns then
        columns = {"text1": Column("a text"), "text2": Column("a text that belongs to it", required=not own)}
        if self.scored:
            columns["score"] = Column("how similar they are, from 0 to score_max", required=not own, target=True)
        return columns

    @override
    def input_columns(self) -> dict[str, Column]:
        """Return the texts: rows to predict have one of them or both."""
        columns = super().input_columns()
        return {side: Column(columns[side].description, required=False) for side in SIDES}

    @override
    def sample(self, folder: Path) -> Splits:
        """Sentences, and the same in words that are spelled backwards, in another order."""
        from taskrecipe.text import WORDS, write_tiny_bert

        write_tiny_bert(folder, [*WORDS, *(_spell_backwards(word) for word in WORDS)])
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_numbers, check_text, require_columns

        sides = self._sides(rows, split)
        if split == PREDICT and not sides:
            raise DataError(f"there is neither {SIDES[0]!r} nor {SIDES[1]!r}, a text to embed")
        require_columns(rows.column_names, {side: Column(self.columns()[side].description) for side in sides}, split)
        for side in sides:
            check_text(rows, split, side)
        if self.scored and len(sides) == len(SIDES):
            check_numbers(rows, split, "score")

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.text import require_length

        tokenizer = source.tokenizer()
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize each side into columns that begin with its name."""
        from taskrecipe.data import map_rows

        sides = self._sides(rows, split)
        keep = ["score"] if self.scored and len(sides) == len(SIDES) else []
        return map_rows(rows, lambda batch: self._tokenize(batch, sides), keep=keep)

    @override
    def lengths(self, rows: Dataset) -> Sequence[int]:
        columns = [name for name in rows.column_names if name.endswith(".input_ids")]
        return [sum(map(len, texts)) for texts in zip(*(rows[name] for name in columns), strict=True)]

    @override
    def collate(self, rows: list[Row]) -> Batch:
        """Pad each side separately. A text without a partner is its own partner."""
        sides = [[_select_side(side, row) for row in rows] for side in SIDES]
        first, second = (super(TwoTower, self).collate(side) if side[0] else None for side in sides)
        batch: Batch = {"text1": first or second, "text2": second or first}
        return batch | (super().collate([{"score": row["score"]} for row in rows]) if "score" in rows[0] else {})

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModel

        from taskrecipe.contrib.towers import Towers

        # Two encoders start with the same weights.
        return Towers([source.model(AutoModel) for _ in range(1 if self.options.shared else 2)], self.options.pooling)

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        vectors: torch.Tensor = model(batch["text1"], batch["text2"])
        return vectors

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["text1"]["input_ids"]))}

    @override
    def loss(self, outputs: torch.Tensor, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        """Return the squared error of each pair's cosine; without a score, how far the cosine is from 1."""
        return {"loss": self._pair_losses(outputs, batch).mean()}

    @override
    def row_losses(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        losses = self._pair_losses(outputs, batch)
        return losses, losses.new_ones(len(losses))

    def _pair_losses(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        cosines = (outputs[:, 0] * outputs[:, 1]).sum(-1)
        if "score" not in batch:
            return 1 - cosines
        wanted = batch["score"].to(cosines.dtype) / self.options.score_max
        errors: torch.Tensor = (cosines - wanted).square()
        return errors

    @override
    def backward(self, model: torch.nn.Module, update: Update) -> None:
        """Treat all pairs of the update as one batch, computed one micro-batch at a time."""
        from taskrecipe.contrib.towers import RandomState

        states, slopes = self._compute_slopes(update)
        processes = update.accelerator.num_processes
        after = RandomState(update.accelerator.device)
        for batch, state, slope in zip(update, states, slopes, strict=True):
            state.restore()  # so that dropout is the same as when the vectors were computed, if torch draws it
            vectors = update.forward(batch)
            # Processes average their gradients, and here they must be summed.
            update.add_gradients((vectors * slope).sum() * processes)
        after.restore()

    def _compute_slopes(self, update: Update) -> tuple[list[Any], list[torch.Tensor]]:
        """Return for each micro-batch the random state before it, and the gradient of the loss by its vectors."""
        import torch

        from taskrecipe.contrib.towers import RandomState, contrastive_loss, gather_vectors

        device, states, vectors = update.accelerator.device, [], []
        with torch.no_grad():
            for batch in update.batches:
                states.append(RandomState(device))
                vectors.append(update.forward(batch.to(device)))
        # The pairs of a filler, where a process has no rows left, are not part of the update.
        is_filler = [not any(batch.counts.values()) for batch in update.batches]
        counted = [found[:0] if filler else found for found, filler in zip(vectors, is_filler, strict=True)]
        own = torch.cat(counted).requires_grad_()
        loss = contrastive_loss(gather_vectors(own, update.accelerator), self.options.temperature)
        (slope,) = torch.autograd.grad(loss, own)
        update.terms["loss"] = loss.detach() / update.accelerator.num_processes
        parts = slope.split([len(found) for found in counted])  # type: ignore[no-untyped-call]
        return states, [
            torch.zeros_like(found) if filler else part
            for part, filler, found in zip(parts, is_filler, vectors, strict=True)
        ]

    @override
    def predict(self, outputs: torch.Tensor, batch: Batch) -> Predictions:
        return {"vectors": outputs}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        """Return correlations with the score; or where each first text finds its partner among all second texts."""
        if self.scored:
            return self._score_cosines(_cosines(predictions["vectors"]), rows)
        return {name: float(np.mean(values)) for name, values in self.row_scores(predictions, rows).items()}

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        """Return what the rank of each text's partner counts. Texts are always searched among those of all rows."""
        if self.scored:
            return {}
        ranks = _ranks(predictions["vectors"])
        recalls = {f"recall@{k}": (ranks <= k).astype(float).tolist() for k in self.options.recall_at}
        return {"mrr": (1 / ranks).tolist(), **recalls}

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        if not self.scored:
            return super().scorer(predictions, rows)
        from taskrecipe.metrics import score_regression

        cosines, right = _cosines(predictions["vectors"]), np.asarray(rows["score"], dtype=np.float64)

        def score(chosen: np.ndarray[Any, Any]) -> dict[str, float]:
            numbers = score_regression(cosines[chosen], right[chosen])
            return {name: numbers[name] for name in self.metrics()}

        return score

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        return Judgment({"cosine": float(row["score"]) / self.options.score_max} if "score" in row else None)

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        """Return the vector of each text that the row has, and the cosine of both."""
        own = {side: vector.tolist() for side, vector in self.vectors(prediction, row).items()}
        if len(own) < len(SIDES):
            return own
        return {"cosine": float(_cosines(np.asarray(prediction["vectors"])[None])[0]), **own}

    @override
    def vectors(self, prediction: Row, row: Row) -> dict[str, np.ndarray[Any, Any]]:
        pairs = zip(SIDES, np.asarray(prediction["vectors"]), strict=True)
        return {side: vector for side, vector in pairs if f"{side}.input_ids" in row}

    @override
    def describe(self, example: Row) -> DescribedText:
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens

        texts = {side: example[f"{side}.input_ids"] for side in SIDES if f"{side}.input_ids" in example}
        score = {"score": f"{example['score']:g}"} if "score" in example else {}
        return DescribedText([describe_tokens(ids, self.processor) for ids in texts.values()], score, list(texts))

    def _sides(self, rows: Dataset, split: str) -> Sequence[str]:
        """Return the texts that rows of a split have."""
        if split == PREDICT:
            return [side for side in SIDES if side in rows.column_names]
        return SIDES[:1] if split == "train" and self.options.self_pairs else SIDES

    def _score_cosines(self, cosines: np.ndarray[Any, Any], rows: Dataset) -> dict[str, float]:
        from taskrecipe.metrics import Regression

        if "score" not in rows.column_names:  # with self-pairs only evaluated rows need it, so it is missed here
            raise DataError("rows that are evaluated need a 'score': how similar their texts are", column="score")
        numbers = Regression().compute(predictions=cosines, references=rows["score"])
        return {name: numbers[name] for name in self.metrics()}

    def _tokenize(self, rows: dict[str, list[Any]], sides: Sequence[str]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for side in sides:
            tokens = self.processor(rows[side], truncation=True, max_length=self.options.max_length)
            made |= {f"{side}.{key}": value for key, value in tokens.items()}
        return made

    def _sample_split(self, number: int, size: int) -> Dataset:
        from datasets import Dataset

        from taskrecipe.text import WORDS, sentence

        random = np.random.default_rng([self.spec.seed, number])
        texts = [sentence(random).split() for _ in range(size)]
        kept = random.integers(0, 6, size) / 5 if self.scored else np.ones(size)
        partners = []
        for words, share in zip(texts, kept, strict=True):
            same = round(share * len(words))
            others = [*words[:same], *random.choice(WORDS, len(words) - same)]
            partners.append(" ".join(_spell_backwards(str(word)) for word in random.permutation(others)))
        columns = {"text1": [" ".join(words) for words in texts], "text2": partners}
        return Dataset.from_dict(columns | ({"score": [float(share) * 5.0 for share in kept]} if self.scored else {}))


def _select_side(side: str, row: Row) -> Row:
    """Return the columns of one side, without its name before theirs."""
    return {key.removeprefix(f"{side}."): value for key, value in row.items() if key.startswith(f"{side}.")}


def _spell_backwards(word: str) -> str:
    return f"x{word[::-1]}"


def _cosines(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the cosine of each pair; vectors have length 1."""
    cosines: np.ndarray[Any, Any] = (vectors[:, 0] * vectors[:, 1]).sum(-1)
    return cosines


def _ranks(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the rank, from 1 on, of each first vector's partner among all second vectors by similarity."""
    first, second = vectors[:, 0], vectors[:, 1]
    ranks = []
    for start in range(0, len(first), 1024):
        cosines = first[start : start + 1024] @ second.T
        own = np.take_along_axis(cosines, np.arange(start, start + len(cosines))[:, None], axis=1)
        ranks.append(1 + (cosines > own + _SAME).sum(axis=1))
    return np.concatenate(ranks)
