"""A stranger's package: are most bits of a row ones? With a callback, an optimizer and a technique of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from taskrecipe import (
    Batch,
    Callback,
    Column,
    Compute,
    Computed,
    Control,
    Count,
    Direction,
    Effect,
    Event,
    Group,
    Listener,
    Optimizer,
    Predictions,
    Recipe,
    Row,
    Splits,
    TaskOptions,
    Technique,
)

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import ModelSource


class Options(TaskOptions):
    """The keys of `[task]`."""

    hidden: Count = Field(default=16, le=4096, description="Width of the hidden layer.")


class Bits(Recipe):
    """Are most bits of a row ones?"""

    Options = Options
    uses_model = False
    smooths_labels = True
    sample_settings: ClassVar = {"train.learning_rate": 0.02, "train.epochs": 3, "train.batch_size": 16}

    @override
    def metrics(self) -> dict[str, Direction]:
        return {"accuracy": "max"}

    @override
    def columns(self) -> dict[str, Column]:
        return {"bits": Column("nine numbers, 0 or 1"), "label": Column("'many' or 'few' ones", target=True)}

    @override
    def sample(self, folder: Path) -> Splits:
        import numpy as np
        from datasets import Dataset

        bits = np.random.default_rng(0).integers(0, 2, (320, 9))
        labels = ["many" if ones > 4 else "few" for ones in bits.sum(1)]
        rows = Dataset.from_dict({"bits": bits.tolist(), "label": labels})
        return {"train": rows.select(range(256)), "validation": rows.select(range(256, 320))}

    @override
    def learn(self, rows: Dataset) -> None:
        from taskrecipe.data import learn_classes

        self.labels = learn_classes(rows, "label")

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_classes

        check_classes(rows, split, "label", self.labels)

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        from taskrecipe.data import add_labels

        return add_labels(rows.select_columns("bits"), rows, "label", self.labels)

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from torch.nn import Linear, ReLU, Sequential

        return Sequential(Linear(9, self.options.hidden), ReLU(), Linear(self.options.hidden, len(self.labels)))

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        return model(batch["bits"].to(next(model.parameters()).dtype))

    @override
    def loss(self, outputs: Any, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        from torch.nn.functional import cross_entropy

        smoothing = self.spec.train.label_smoothing if training else 0.0
        return {"loss": cross_entropy(outputs, batch["labels"], label_smoothing=smoothing)}

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        return {"label": outputs.argmax(-1)}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        return {"accuracy": float((predictions["label"] == rows["labels"]).mean())}

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        return {"label": self.labels[int(prediction["label"])]}


class FlipBits(Technique):
    """Trains on each row's opposite too: its bits flipped, and its label with them."""

    changes_loss = True

    @override
    def build(self, recipe: Recipe, source: ModelSource) -> Effect:
        return _FlippedToo()


class _FlippedToo(Effect):
    @override
    def loss(self, compute: Compute, model: torch.nn.Module, batch: Batch) -> Computed:
        plain = compute(model, batch)
        flipped = compute(model, {**batch, "bits": 1 - batch["bits"], "labels": 1 - batch["labels"]})
        return Computed(plain.outputs, {"loss": (plain.terms["loss"] + flipped.terms["loss"]) / 2})


class CountUpdates(Callback):
    """Stops after a number of updates, counted over resumes."""

    limit: Count = Field(description="Updates to stop after.")

    @override
    def build(self) -> Listener:
        return _Counter(self.limit)


class _Counter(Listener):
    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0

    @override
    def on_event(self, event: Event, control: Control) -> None:
        self.count += event.name == "update"
        if self.count >= self.limit:
            control.stop(f"{self.count} updates counted")

    @override
    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Sign(Optimizer):
    """Moves each weight by the sign of its gradient."""

    @override
    def build(self, groups: list[Group], learning_rate: float) -> torch.optim.Optimizer:
        import torch

        class SignDescent(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure: Any = None) -> None:
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.add_(parameter.grad.sign(), alpha=-group["lr"])

        return SignDescent(groups, {"lr": learning_rate})
