"""A recipe small enough to check the loop by hand: tag each token of a short sequence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from pydantic import Field

from taskrecipe.core.recipe import Column, Recipe, TaskOptions

VOCABULARY = 23


class Tagger(torch.nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 12)
        self.dropout = torch.nn.Dropout(dropout)
        self.norm = torch.nn.LayerNorm(12)
        self.head = torch.nn.Linear(12, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.head(self.norm(self.dropout(self.embedding(input_ids))))
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 2), labels.reshape(-1), ignore_index=-100)
        return SimpleNamespace(loss=loss, logits=logits)

    def save_pretrained(self, folder: Path) -> None:
        torch.save(self.state_dict(), Path(folder) / "weights.pt")


class TagOptions(TaskOptions):
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="Dropout.")
    noise: bool = Field(default=False, description="Replace a token at random, anew in every epoch.")


class Tag(Recipe):
    """Tag tokens by parity."""

    Options = TagOptions

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
