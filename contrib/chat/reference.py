"""Log probabilities of answers under the model that training starts from, computed once before training.

The model is loaded, used and dropped again, so that no second model stays in memory. Rows with these columns are
cached by the fingerprint of rows, options, tokenizer and weights, as all preprocessed rows are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskrecipe import Batch, Row

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import ModelSource, Spec

BATCH = 8


def digest_weights(source: ModelSource) -> str:
    """Return a hash of a model's weights and configuration."""
    digest = hashlib.sha256()
    folder = source.folder
    files = [] if folder is None else [*folder.glob("*.safetensors"), *folder.glob("config.json")]
    for path in sorted(files):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    digest.update(repr(sorted(source.config_values.items())).encode())
    return digest.hexdigest()


def add_reference(
    rows: Dataset,
    model: torch.nn.Module,
    measure: Callable[[torch.nn.Module, Batch], torch.Tensor],
    collate: Callable[[list[Row]], Batch],
    spec: Spec,
) -> Dataset:
    """Add the log probability of both answers of each row under `model`, as the columns of their names."""
    import numpy as np
    import torch

    device = _find_device(spec)
    half = spec.train.precision == "bf16"
    model = model.eval().to(device)
    found = []
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        for start in range(0, len(rows), BATCH):
            batch = collate(rows.__getitems__(list(range(start, min(start + BATCH, len(rows))))))
            found.append(measure(model, {name: value.to(device) for name, value in batch.items()}).double().cpu())
    values: Any = torch.cat(found).numpy() if found else np.zeros((0, 2))
    return rows.add_column("reference", values.tolist())


def _find_device(spec: Spec) -> torch.device:
    import torch

    if spec.launch.device == "cpu" or not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")
