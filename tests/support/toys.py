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

from taskrecipe import label_losses
from taskrecipe.recipe import Column, Judgment, Recipe, TaskOptions

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

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Tagged:
        logits = self.head(self.norm(self.dropout(self.embedding(input_ids))))
        if labels is None:
            return Tagged(torch.zeros(()), logits)
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
        return {"input_ids": Column("tokens"), "labels": Column("tags", target=True)}

    def example(self, row, random, training):
        if not self.options.noise:
            return row
        ids = np.array(row["input_ids"])
        ids[random.integers(len(ids))] = random.integers(VOCABULARY)
        return {**row, "input_ids": ids}

    def load_model(self, source: Any) -> Tagger:
        return Tagger(self.options.dropout)

    def predict(self, outputs, batch):
        return {"tags": list(outputs.logits.argmax(-1).cpu().numpy())}

    def score(self, predictions, rows):
        pairs = zip(predictions["tags"], rows["labels"], strict=True)
        right, counted = (sum(numbers) for numbers in zip(*(count_right(*pair) for pair in pairs), strict=True))
        return {"accuracy": right / counted}

    def answer(self, prediction, row):
        return {"tags": [["even", "odd"][tag] for tag in prediction["tags"][: len(row["input_ids"])]]}


def count_right(tags, labels) -> tuple[int, int]:
    """How many tags of a row are right, and how many there are."""
    labels = np.array(labels)
    tagged = labels != -100
    return int((np.array(tags)[: len(labels)] == labels)[tagged].sum()), int(tagged.sum())


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

    def forward(self, model, batch):
        return super().forward(model, {key: value for key, value in batch.items() if key != "extra"})


class Mislabelled(Tag):
    """The model's class names are not those of the data."""

    def learn(self, rows) -> None:
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

    def predict(self, outputs, batch):
        return {"mean": outputs.logits.mean().expand(len(batch["input_ids"]))}

    def score(self, predictions, rows):
        return {"accuracy": predictions["mean"].mean()}


class Unweighted(Tag):
    """Counts rows where its loss is a mean over tokens."""

    def loss_counts(self, batch):
        return {"loss": float(len(batch["labels"]))}


class Idle(Tag):
    """A weight that no batch uses, and no word about it."""

    def load_model(self, source):
        model = super().load_model(source)
        model.spare = torch.nn.Parameter(torch.zeros(2))
        return model


class Restless(Tag):
    """Draws from a generator of its own."""

    def example(self, row, random, training):
        ids = np.array(row["input_ids"])
        ids[0] = np.random.default_rng().integers(VOCABULARY)
        return {**row, "input_ids": ids}


class Remembering(Tag):
    """Trains on what it counted since it was made."""

    def loss(self, outputs, batch, training):
        self.seen = getattr(self, "seen", 0) + 1
        return {"loss": super().loss(outputs, batch, training)["loss"] * self.seen}


class Unteachable(Tag):
    """A loss that doesn't depend on the weights but for a trace."""

    def loss(self, outputs, batch, training):
        return {"loss": super().loss(outputs, batch, training)["loss"] * 1e-9 + 1.0}


class WrongWay(Tag):
    """Says that less accuracy is better."""

    def metrics(self) -> dict[str, str]:
        return {"accuracy": "min"}


class Peeking(Tag):
    """Predicts the tags that it was given."""

    def predict(self, outputs, batch):
        return {"tags": list(batch.get("labels", outputs.logits.argmax(-1)).cpu().numpy())}


class Speechless(Tag):
    """Its answers are no JSON."""

    def answer(self, prediction, row):
        return {"tags": prediction["tags"]}


class Choosy(Tag):
    """Leaves out the last row of those without tags."""

    def preprocess(self, rows, split):
        return rows if "labels" in rows.column_names else rows.select(range(len(rows) - 1))


class Invisible(Tag):
    """Describes an example by something that can't be shown."""

    def describe(self, example):
        return example


class Forgetful(Tag):
    """Learns what can't be written down."""

    def learn(self, rows) -> None:
        self.labels = {"even", "odd"}


class Opaque(Tag):
    """Judges rows by what can't be written down."""

    def judge(self, prediction, row):
        return Judgment(reference=np.array(row["labels"]))


class Flattering(Tag):
    """Says that every row is right."""

    def row_scores(self, predictions, rows):
        return {"accuracy": [1.0] * len(rows)}


class Careless(Tag):
    """Counts a row's loss once, though it is a mean over tokens."""

    def row_losses(self, outputs, batch):
        sums, counts = label_losses(outputs.logits, batch["labels"])
        return sums / counts, torch.ones_like(sums)
