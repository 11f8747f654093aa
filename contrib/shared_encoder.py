"""Several models with heads of their own on one encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: TID253 - imported only where a model is made

from taskrecipe import UsageError


class SharedEncoder(torch.nn.Module):
    """Models by name, whose encoders are one and the same."""

    def __init__(self, models: dict[str, Any]) -> None:
        super().__init__()
        self.encoder_name = _share(models)
        self.names = list(models)
        self.models = torch.nn.ModuleList(models.values())

    def forward(self, run: Callable[[dict[str, Any]], Any]) -> Any:
        """Return what `run` computes with the models: in one call, since processes exchange gradients for each call."""
        return run(self.by_name())

    def by_name(self) -> dict[str, Any]:
        """Return the models by name."""
        return dict(zip(self.names, self.models, strict=True))

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Enable gradient checkpointing in all models."""
        for model in self.models:
            model.gradient_checkpointing_enable(**options)  # type: ignore[operator]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the encoder into `folder`, and each model, encoder and head, into a folder of its name there."""
        models = self.by_name()
        models[self.encoder_name].base_model.save_pretrained(folder)
        for name, model in models.items():
            model.save_pretrained(Path(folder) / name)


def _share(models: dict[str, Any]) -> str:
    """Give all models one encoder, and return whose it was: that of the model which has all parts that others need."""
    encoders = {name: getattr(model, "base_model", model) for name, model in models.items()}
    parts = {name: set(encoder.state_dict()) for name, encoder in encoders.items()}
    chosen = max(parts, key=lambda name: len(parts[name]))
    shared = encoders[chosen]
    for name, model in models.items():
        if encoders[name] is model or type(encoders[name]) is not type(shared) or not parts[name] <= parts[chosen]:
            raise UsageError(
                f"tasks {chosen!r} and {name!r} can't share an encoder: theirs are a {type(shared).__name__} "
                f"and a {type(encoders[name]).__name__} with other parts"
            )
        setattr(model, model.base_model_prefix, shared)
        model.tie_weights()  # a head that uses the word embeddings uses the shared ones
    return chosen
