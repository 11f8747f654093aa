"""A stranger's package: is a row of bits mostly ones? With a callback and an optimizer of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from taskrecipe.core.plugins import Callback, Listener, Optimizer
from taskrecipe.core.recipe import Column, Recipe
from taskrecipe.core.spec.table import Count, TaskOptions


class Options(TaskOptions):
    """What `[task]` takes."""

    hidden: Count = Field(default=16, le=4096, description="Width of the hidden layer.")


class Bits(Recipe):
    """Is a row of bits mostly ones?"""

    Options = Options
    sample_settings: ClassVar = {"train.learning_rate": 0.02, "train.epochs": 3, "train.batch_size": 16}

    def metrics(self):
        return {"accuracy": "max"}

    def columns(self):
        return {"bits": Column("nine numbers, 0 or 1"), "labels": Column("1 if most of them are 1, else 0")}

    def sample(self, folder):
        import numpy as np
        from datasets import Dataset

        bits = np.random.default_rng(0).integers(0, 2, (320, 9))
        rows = Dataset.from_dict({"bits": bits.tolist(), "labels": (bits.sum(1) > 4).astype(int).tolist()})
        return {"train": rows.select(range(256)), "validation": rows.select(range(256, 320))}

    def load_model(self, source):
        import torch
        from transformers.modeling_outputs import SequenceClassifierOutput

        class Network(torch.nn.Sequential):
            def forward(self, bits, labels):
                logits = super().forward(bits.to(self[0].weight.dtype))
                return SequenceClassifierOutput(torch.nn.functional.cross_entropy(logits, labels), logits)

        hidden = self.options.hidden
        return Network(torch.nn.Linear(9, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2))

    def predictions(self, model, batch, outputs):
        return {"right": outputs.logits.argmax(-1) == batch["labels"]}

    def score(self, predictions, rows):
        return {"accuracy": float(predictions["right"].mean())}


class CountUpdates(Callback):
    """Stops after a number of updates, counted over resumes."""

    limit: Count = Field(description="Updates to stop after.")

    def build(self) -> Listener:
        return _Counter(self.limit)


class _Counter(Listener):
    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0

    def hear(self, event: Any, control: Any) -> None:
        self.count += event.name == "update"
        if self.count >= self.limit:
            control.stop(f"{self.count} updates counted")

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


class Sign(Optimizer):
    """Moves each weight by the sign of its gradient."""

    def build(self, groups, learning_rate):
        import torch

        class SignDescent(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.add_(parameter.grad.sign(), alpha=-group["lr"])

        return SignDescent(groups, {"lr": learning_rate})
