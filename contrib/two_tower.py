"""Two towers: texts become vectors, and texts that belong together near ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits
from taskrecipe.core.spec.table import Count, TaskOptions

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.training.batches import MicroBatch
    from taskrecipe.core.training.update import Update

SIDES = ("text1", "text2")

_SAME = 1e-6
"""Likenesses closer than this count as equal: the same text in another batch may differ in its last bits."""


class TwoTowerOptions(TaskOptions):
    """Options of `two_tower`."""

    objective: Literal["contrastive", "cosine"] = Field(
        default="contrastive",
        description="contrastive: find one's partner among all of the update; cosine: be as alike as the score says.",
    )
    self_pairs: bool = Field(
        default=False,
        description="Train on text1 alone: each text is its own partner, seen with other dropout (SimCSE).",
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
        default=[1, 10], min_length=1, max_length=10, description="The k of recall@k: found among the k nearest."
    )
    max_length: Count = Field(default=128, le=1_000_000, description="Tokens a text is cut off at.")

    @model_validator(mode="after")
    def _self_pairs_contrast(self) -> TwoTowerOptions:
        if self.self_pairs and self.objective == "cosine":
            raise ValueError(
                "'self_pairs' is for objective = \"contrastive\": a text and itself have no score to learn"
            )
        return self


class TwoTower(Recipe):
    """Text embeddings from pairs: similarity, retrieval, and SimCSE.

    Two texts go through one encoder or two, and become vectors that are compared by their cosine. With the
    contrastive objective every text must find its partner among all texts of the update, whatever number of
    micro-batches and processes it is spread over: vectors are computed first and gradients sent back afterwards, so
    memory is that of a micro-batch. Measured are mrr and recall@k over the whole split. With the cosine objective, or
    where texts are their own partners, rows measured on have a score, and Spearman's and Pearson's correlation with
    it are told. The exported model is the encoder itself.
    """

    Options = TwoTowerOptions
    options: TwoTowerOptions
    sample_settings: ClassVar = {
        "train.learning_rate": 1e-3,
        "train.epochs": 3,
        "train.batch_size": 32,
        "train.accumulate": 1,
    }

    @property
    def scored(self) -> bool:
        """Whether rows measured on have a score; else they are pairs to be found."""
        return self.options.objective == "cosine" or self.options.self_pairs

    def metrics(self) -> dict[str, Direction]:
        """Correlations with the score, or how well partners are found."""
        if self.scored:
            return {"spearman": "max", "pearson": "max"}
        return dict.fromkeys(["mrr", *(f"recall@{k}" for k in self.options.recall_at)], "max")

    def columns(self) -> dict[str, Column]:
        """The texts, and the score where one is needed; in self-pairs, only rows measured on have all."""
        own = self.options.self_pairs
        columns = {"text1": Column("a text"), "text2": Column("a text that belongs to it", required=not own)}
        if self.scored:
            columns["score"] = Column("how alike they are, from 0 to score_max", required=not own)
        return columns

    def sample(self, folder: Path) -> Splits:
        """Sentences, and the same said in words that are spelled backwards, in another order."""
        from taskrecipe.core.sample_text import WORDS, write_tiny_bert

        write_tiny_bert(folder, [*WORDS, *(_backwards(word) for word in WORDS)])
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    def check(self, splits: Splits) -> None:
        """Texts must be text and scores numbers, in every split that they are needed in."""
        from taskrecipe.core.data.columns import require
        from taskrecipe.core.data.labels import check_numbers
        from taskrecipe.core.data.text import check_text

        for split, rows in splits.items():
            needed = {name: Column(column.description) for name, column in self.columns().items()}
            if split == "train" and self.options.self_pairs:
                needed = {"text1": needed["text1"]}
            require(rows.column_names, needed, split)
            for side in (name for name in needed if name in SIDES):
                check_text(rows, split, side)
            if "score" in needed:
                check_numbers(rows, split, "score")

    def load_processor(self, source: ModelSource) -> Any:
        """The encoder's tokenizer."""
        from taskrecipe.core.fit import require_length

        tokenizer = source.tokenizer()
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize each side into columns that begin with its name."""
        from taskrecipe.core.data.cache import map_rows

        alone = split == "train" and self.options.self_pairs
        sides = SIDES[:1] if alone else SIDES
        keep = ["score"] if self.scored and not alone else []
        return map_rows(rows, lambda batch: self._tokenize(batch, sides), keep=keep)

    def lengths(self, rows: Dataset) -> Sequence[int]:
        """The tokens of both texts."""
        columns = [name for name in rows.column_names if name.endswith(".input_ids")]
        return [sum(map(len, texts)) for texts in zip(*(rows[name] for name in columns), strict=True)]

    def collate(self, rows: list[Row]) -> Batch:
        """Pad each side by itself; a text without a partner is its own."""
        from taskrecipe.core.collate import pad

        sides = {side: [_under(side, row) for row in rows] for side in SIDES}
        first, second = (pad(side, self.padding()) if side[0] else None for side in sides.values())
        batch: Batch = {"text1": first, "text2": second or first}
        if "score" in rows[0]:
            batch |= pad([{"score": row["score"]} for row in rows], {})
        return batch

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """One encoder, or two that begin as the same one."""
        from transformers import AutoModel

        from taskrecipe.contrib.towers import Towers

        return Towers([source.model(AutoModel) for _ in range(1 if self.options.shared else 2)], self.options.pooling)

    def weights(self, batch: Batch) -> dict[str, float]:
        """The loss is a mean over pairs."""
        return {"loss": float(len(batch["text1"]["input_ids"]))}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """Each pair by itself: the squared error of its cosine, or without a score how far it is from 1."""
        vectors = model(batch["text1"], batch["text2"])
        cosines = (vectors[:, 0] * vectors[:, 1]).sum(-1)
        if "score" not in batch:
            return Loss({"loss": (1 - cosines).mean()}, vectors)
        wanted = batch["score"].to(cosines.dtype) / self.options.score_max
        return Loss({"loss": (cosines - wanted).square().mean()}, vectors)

    def backward(self, model: torch.nn.Module, update: Update) -> None:
        """With the contrastive objective, all pairs of the update are one batch, computed piece by piece."""
        if self.options.objective == "cosine":
            super().backward(model, update)
            return
        from taskrecipe.contrib.towers import RandomState

        states, slopes = self._slopes(model, update)
        processes = update.accelerator.num_processes
        after = RandomState(update.accelerator.device)
        for batch, state, slope in zip(update, states, slopes, strict=True):
            state.restore()  # so that dropout is the same as when the vectors were computed
            vectors = model(batch.inputs["text1"], batch.inputs["text2"])
            # Gradients are averaged over processes where they should be added.
            update.accelerator.backward((vectors * slope).sum() * processes)
        after.restore()

    def _slopes(self, model: torch.nn.Module, update: Update) -> tuple[list[Any], list[torch.Tensor]]:
        """For each micro-batch the random state it began with, and the gradient of the update's loss by its vectors."""
        import torch

        from taskrecipe.contrib.towers import RandomState, contrast, with_everyones

        device, states, vectors = update.accelerator.device, [], []
        with torch.no_grad():
            for batch in update.batches:
                states.append(RandomState(device))
                inputs = batch.to(device).inputs
                vectors.append(model(inputs["text1"], inputs["text2"]))
        counted = [found if _counts(batch) else found[:0] for found, batch in zip(vectors, update.batches, strict=True)]
        own = torch.cat(counted).requires_grad_()
        loss = contrast(with_everyones(own, update.accelerator), self.options.temperature)
        (slope,) = torch.autograd.grad(loss, own)
        update.terms["loss"] = loss.detach() / update.accelerator.num_processes
        parts = slope.split([len(found) for found in counted])  # type: ignore[no-untyped-call]
        return states, [
            part if _counts(batch) else torch.zeros_like(found)
            for part, batch, found in zip(parts, update.batches, vectors, strict=True)
        ]

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The cosine of each pair and its score; or the vectors, of which each is compared with all."""
        if self.scored:
            return {"predictions": (outputs[:, 0] * outputs[:, 1]).sum(-1), "references": batch["score"]}
        return {"vectors": outputs}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """Correlations; or where each first text finds its partner among all the second ones."""
        if self.scored:
            from taskrecipe.core.metrics import Regression

            numbers = Regression().compute(**predictions)
            return {name: numbers[name] for name in self.metrics()}
        ranks = _ranks(predictions["vectors"])
        recalls = {f"recall@{k}": float(np.mean(ranks <= k)) for k in self.options.recall_at}
        return {"mrr": float(np.mean(1 / ranks)), **recalls}

    def _tokenize(self, rows: dict[str, list[Any]], sides: Sequence[str]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for side in sides:
            tokens = self.processor(rows[side], truncation=True, max_length=self.options.max_length)
            made |= {f"{side}.{key}": value for key, value in tokens.items()}
        return made

    def _sample_split(self, number: int, size: int) -> Dataset:
        from datasets import Dataset

        from taskrecipe.core.sample_text import WORDS, sentence

        random = np.random.default_rng([self.spec.seed, number])
        texts = [sentence(random).split() for _ in range(size)]
        kept = random.integers(0, 6, size) / 5 if self.scored else np.ones(size)
        partners = []
        for words, share in zip(texts, kept, strict=True):
            same = round(share * len(words))
            others = [*words[:same], *random.choice(WORDS, len(words) - same)]
            partners.append(" ".join(_backwards(str(word)) for word in random.permutation(others)))
        columns = {"text1": [" ".join(words) for words in texts], "text2": partners}
        return Dataset.from_dict(columns | ({"score": [float(share) * 5.0 for share in kept]} if self.scored else {}))


def _under(side: str, row: Row) -> Row:
    """What a row has of one side."""
    return {key.removeprefix(f"{side}."): value for key, value in row.items() if key.startswith(f"{side}.")}


def _counts(batch: MicroBatch) -> bool:
    """Whether the pairs of a micro-batch belong to the update; those of a filler don't."""
    return any(batch.weights.values())


def _backwards(word: str) -> str:
    return f"x{word[::-1]}"


def _ranks(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where each first vector's partner comes among all the second ones by likeness, from 1 on."""
    first, second = vectors[:, 0], vectors[:, 1]
    ranks = []
    for start in range(0, len(first), 1024):
        likeness = first[start : start + 1024] @ second.T
        own = np.take_along_axis(likeness, np.arange(start, start + len(likeness))[:, None], axis=1)
        ranks.append(1 + (likeness > own + _SAME).sum(axis=1))
    return np.concatenate(ranks)
