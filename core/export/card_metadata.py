"""The part of a model card that the hub reads: task, base model, license, data sets, and metrics by the hub's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskrecipe.export.model_card import Card

METRICS = {
    "accuracy": "accuracy",
    "pixel_accuracy": "accuracy",
    "f1": "f1",
    "macro_f1": "f1",
    "precision": "precision",
    "recall": "recall",
    "matthews_correlation": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "mse": "mse",
    "exact_match": "exact_match",
    "perplexity": "perplexity",
    "rouge1": "rouge",
    "rouge2": "rouge",
    "rougeL": "rouge",
    "rougeLsum": "rouge",
    "bleu": "bleu",
    "mean_iou": "mean_iou",
    "map": "mean_average_precision",
    "map_50": "mean_average_precision",
    "map_75": "mean_average_precision",
}
"""Our metrics that the hub has a name for. Any other keeps ours."""

LICENSE_KEYS = ("license", "license_name", "license_link")
"""Keys of a model card that say under which license the model is."""


def front_matter(card: Card) -> str:
    """Return the card's metadata as YAML between two lines of dashes."""
    from huggingface_hub import ModelCardData

    license: dict[str, Any] = dict(card.license)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=card.task.tag if card.task else None,
        base_model=card.base_model,
        datasets=card.datasets or None,
        tags=["taskrecipe", str(card.spec["recipe"])],
        metrics=sorted({METRICS[name] for name in _plain_names(card) if name in METRICS}) or None,
        model_name=card.name,
        eval_results=_evaluation_results(card) or None,
        **license,
    )
    if data.eval_results is None:
        data.model_name = None  # it is only written with results
    return f"---\n{data.to_yaml()}\n---"


def read_license(folder: Path | None) -> dict[str, str]:
    """Return what the card of a model says about its license; nothing where there is no card or it can't be read."""
    if folder is None or not (folder / "README.md").is_file():
        return {}
    import yaml
    from huggingface_hub.repocard import metadata_load

    try:
        found = metadata_load(folder / "README.md")
    except (OSError, ValueError, yaml.YAMLError):  # someone else's file
        return {}
    return {key: str(found[key]) for key in LICENSE_KEYS if isinstance(found, Mapping) and found.get(key)}


def _plain_names(card: Card) -> list[str]:
    """Return the metrics' names without the splits that they were measured on."""
    return [name.rpartition("/")[2] for name in card.metrics]


def _evaluation_results(card: Card) -> list[Any]:
    """Return each metric as the hub takes it. Numbers on sample data say nothing, so they are left out."""
    from huggingface_hub import EvalResult

    if card.is_sample or card.task is None:
        return []
    data = card.spec["data"]
    return [
        EvalResult(
            task_type=card.task.tag,
            dataset_type=card.dataset or "files",
            dataset_name=card.dataset or "local files",
            dataset_config=data.get("name") if card.dataset else None,
            dataset_split=name.rpartition("/")[0] or "validation",
            dataset_revision=card.commits.get("data"),
            metric_type=METRICS.get(plain, plain),
            metric_name=plain,
            metric_value=round(value, 6),
        )
        for name, plain, value in zip(card.metrics, _plain_names(card), card.metrics.values(), strict=True)
        if value is not None
    ]
