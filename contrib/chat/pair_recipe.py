"""What `preference` and `reward` share: rows are pairs of a better and a worse answer, each with a reward."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from taskrecipe import IGNORED, Batch, DescribedText, Direction, Judgment, Predictions, Recipe, Row
from taskrecipe.contrib.chat.pairs import SIDES, pair_lengths
from taskrecipe.text import describe_tokens

if TYPE_CHECKING:
    import torch
    from datasets import Dataset


class PairRecipe(Recipe):
    """Pairs of answers. `predict` gives the `rewards` of both: rows x 2."""

    sample_settings: ClassVar = {
        "task.max_length": 64,
        "task.template": None,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "train.learning_rate": 2e-3,
        "schedule.warmup": 0.1,
    }

    @abstractmethod
    def pair_losses(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """Return the loss of each pair."""

    def score_pairs(self, predictions: Predictions) -> dict[str, np.ndarray]:
        """Return each metric of each pair."""
        margins = np.asarray(predictions["rewards"][:, 0] - predictions["rewards"][:, 1], dtype=np.float64)
        return {"accuracy": (margins > 0).astype(np.float64), "margin": margins}

    @override
    def metrics(self) -> dict[str, Direction]:
        return {"accuracy": "max", "margin": "max"}

    @override
    def lengths(self, rows: Dataset) -> Sequence[int]:
        return pair_lengths(rows)

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["input_ids"]))}

    @override
    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        return {"loss": self.pair_losses(outputs, batch).mean()}

    @override
    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        losses = self.pair_losses(outputs, batch)
        return losses, losses.new_ones(len(losses))

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        return {name: float(values.mean()) for name, values in self.score_pairs(predictions).items()}

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        return {name: values.tolist() for name, values in self.score_pairs(predictions).items()}

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        rewards = prediction["rewards"]
        return Judgment(reference={"preferred": "chosen"}, correct=bool(rewards[0] > rewards[1]))

    @override
    def describe(self, example: Row) -> DescribedText:
        """Show the conversation with each answer on a line of its own. The answers' tokens are marked."""
        lines = []
        for side in SIDES:
            pieces = describe_tokens(example[f"{side}_ids"], self.processor)
            marked = zip(pieces, example[f"{side}_labels"], strict=True)
            lines.append([replace(piece, role="trained") if label != IGNORED else piece for piece, label in marked])
        return DescribedText([line for line in lines if line], {"lines": "the chosen answer, then the rejected one"})
