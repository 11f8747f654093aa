"""The model card of a run: written when training ends, and again, with what is known by then, for each export."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.export.card_metadata import read_license
from taskrecipe.export.model_card import Card
from taskrecipe.export.portable_spec import SPEC, write_portable_spec
from taskrecipe.export.tasks import find_task
from taskrecipe.recipe import reported_name

if TYPE_CHECKING:
    from taskrecipe.model import ModelSource
    from taskrecipe.run.handle import Run
    from taskrecipe.spec.resolve import Resolved

PREDICTIONS = "predictions"
BOOTSTRAP = ".bootstrap.parquet"
"""The ending of the files that hold each metric on resampled rows."""


def make_card(
    resolved: Resolved,
    results: Mapping[str, Any],
    source: ModelSource | None = None,
    architecture: str | None = None,
    folder: Path | None = None,
) -> Card:
    """Gather what the card of a run says.

    `source` is the model that training started from, `architecture` the name of the trained model's class, and
    `folder` the run's folder, where the evidence of its evaluation may be.
    """
    text = write_portable_spec(resolved)
    return Card(
        name=str(results["name"]),
        spec=tomllib.loads(text),
        spec_text=text,
        results=results,
        commits=results.get("hub") or {},
        task=find_task(architecture),
        license=read_license(source.folder) if source and results["data"] != "sample" else {},
        intervals=read_intervals(folder, resolved) if folder else {},
    )


def card_of_run(run: Run, place: str | None = None) -> Card:
    """Gather what the card of a run that has ended says. `place` is the hub id that its model will have."""
    import json

    from taskrecipe.spec.resolve import resolve

    model = run.folder / "model"
    config = model / "config.json"
    architectures = json.loads(config.read_bytes()).get("architectures") if config.exists() else None
    has_own_weights = (model / "weights.safetensors").exists()
    architecture = None if has_own_weights or not architectures else str(architectures[0])
    card = make_card(resolve(run.folder / SPEC), run.results, architecture=architecture, folder=run.folder)
    return replace(card, license=read_license(model), place=place, is_chat=has_chat_template(model))


def has_chat_template(model: Path) -> bool:
    """Return whether the tokenizer in a model's folder has a chat template."""
    return (model / "chat_template.jinja").is_file()


def read_intervals(folder: Path, resolved: Resolved) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each metric that was measured on resampled rows, by its reported name."""
    from taskrecipe.plugins.registry import installed
    from taskrecipe.recipe import evaluated_splits

    recipe = installed().recipe(resolved.spec.recipe)(resolved.spec)
    found: dict[str, tuple[float, float]] = {}
    for split in evaluated_splits(recipe):
        path = folder / PREDICTIONS / f"{split.replace('/', '-')}{BOOTSTRAP}"
        if path.is_file():
            found |= {reported_name(split, name): interval for name, interval in _read_columns(path).items()}
    return found


def _read_columns(path: Path) -> dict[str, tuple[float, float]]:
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    columns = {name: np.asarray(table[name], dtype=float) for name in table.column_names}
    return {
        name: (float(low), float(high))
        for name, values in columns.items()
        if len(values) and np.isfinite(values).all()
        for low, high in [np.percentile(values, [2.5, 97.5])]
    }
