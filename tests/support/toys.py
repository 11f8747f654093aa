"""A recipe small enough to check the loop by hand: tag each token of a short sequence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from pydantic import Field

from taskrecipe.core.recipe import Column, Recipe, TaskOptions

VOCABULARY = 23


@dataclass
class Tagged:
    loss: torch.Tensor
    logits: torch.Tensor


class Tagger(torch.nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 12)
        self.dropout = torch.nn.Dropout(dropout)
        self.norm = torch.nn.LayerNorm(12)
        self.head = torch.nn.Linear(12, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Tagged:
        logits = self.head(self.norm(self.dropout(self.embedding(input_ids))))
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 2), labels.reshape(-1), ignore_index=-100)
        return Tagged(loss, logits)

    def save_pretrained(self, folder: Path) -> None:
        torch.save(self.state_dict(), Path(folder) / "weights.pt")


class TagOptions(TaskOptions):
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="Dropout.")
    noise: bool = Field(default=False, description="Replace a token at random, anew in every epoch.")


class Tag(Recipe):
    """Tag tokens by parity."""

    Options = TagOptions
    sample_settings: ClassVar = {"train.learning_rate": 0.02, "train.epochs": 6, "train.batch_size": 8}

    def sample(self, folder: Path) -> dict[str, Dataset]:
        return {"train": tag_rows(120), "validation": tag_rows(40, seed=1)}

    def metrics(self) -> dict[str, str]:
        return {"accuracy": "max"}

    def columns(self) -> dict[str, Column]:
        return {"input_ids": Column("tokens"), "labels": Column("tags")}

    def example(self, row, random, training):
        if not self.options.noise:
            return row
        ids = np.array(row["input_ids"])
        ids[random.integers(len(ids))] = random.integers(VOCABULARY)
        return {**row, "input_ids": ids}

    def load_model(self, source: Any) -> Tagger:
        return Tagger(self.options.dropout)

    def predictions(self, model, batch, outputs):
        right = (outputs.logits.argmax(-1) == batch["labels"]) & (batch["labels"] != -100)
        return {"right": right.sum(-1), "counted": (batch["labels"] != -100).sum(-1)}

    def score(self, predictions, rows):
        return {"accuracy": predictions["right"].sum() / predictions["counted"].sum()}


def tag_rows(count: int, seed: int = 0) -> Dataset:
    """Rows of unequal length, some tokens without a tag."""
    random = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {"input_ids": [], "labels": []}
    for _ in range(count):
        ids = random.integers(0, VOCABULARY, int(random.integers(2, 9)))
        labels = np.where(random.random(len(ids)) < 0.2, -100, ids % 2)
        labels[0] = ids[0] % 2
        rows["input_ids"].append(ids.tolist())
        rows["labels"].append(labels.tolist())
    return Dataset.from_dict(rows)


# Recipes that are broken in one way each -------------------------------------------------------------


class _Secretive(TagOptions):
    secret: int = 1


class Undocumented(Tag):
    """An option without words."""

    Options = _Secretive


class Undeclared(Tag):
    """Doesn't say which columns it needs."""

    def columns(self) -> dict[str, Column]:
        return {}


class Shapeless(Tag):
    """A batch with something in it that is not one entry a row."""

    def collate(self, rows):
        return {**super().collate(rows), "extra": torch.zeros(1)}

    def loss(self, model, batch):
        return super().loss(model, {key: value for key, value in batch.items() if key != "extra"})


class Mislabelled(Tag):
    """The model's class names are not those of the data."""

    def check(self, splits) -> None:
        self.labels = ["even", "odd"]

    def load_model(self, source: Any) -> Tagger:
        model = super().load_model(source)
        model.config = SimpleNamespace(id2label={0: "odd", 1: "even"}, label2id={"odd": 0, "even": 1})
        return model


class Unreported(Tag):
    """Declares a metric that it doesn't report."""

    def metrics(self) -> dict[str, str]:
        return {"accuracy": "max", "missing": "max"}


class MeanOfMeans(Tag):
    """A metric that is a mean of batches' means."""

    def predictions(self, model, batch, outputs):
        counted = batch["labels"] != -100
        right = ((outputs.logits.argmax(-1) == batch["labels"]) & counted).sum() / counted.sum()
        return {"right": right.expand(len(batch["labels"]))}

    def score(self, predictions, rows):
        return {"accuracy": predictions["right"].mean()}


class Unweighted(Tag):
    """Counts rows where its loss is a mean over tokens."""

    def weights(self, batch):
        return {"loss": float(len(batch["labels"]))}


class Restless(Tag):
    """Draws from a generator of its own."""

    def example(self, row, random, training):
        ids = np.array(row["input_ids"])
        ids[0] = np.random.default_rng().integers(VOCABULARY)
        return {**row, "input_ids": ids}


class Remembering(Tag):
    """Trains on what it counted since it was made."""

    def loss(self, model, batch):
        self.seen = getattr(self, "seen", 0) + 1
        loss = super().loss(model, batch)
        loss.terms["loss"] = loss.terms["loss"] * self.seen
        return loss


class Unteachable(Tag):
    """A loss that doesn't depend on the weights but for a trace."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        loss.terms["loss"] = loss.terms["loss"] * 1e-9 + 1.0
        return loss


class WrongWay(Tag):
    """Says that less accuracy is better."""

    def metrics(self) -> dict[str, str]:
        return {"accuracy": "min"}
