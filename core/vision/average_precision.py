"""COCO's average precision, as an `evaluate` module that is defined here and never downloaded.

Imported by recipes inside `score`, since `evaluate` is heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import evaluate  # noqa: TID253
import numpy as np
from datasets import Features, List, Value  # noqa: TID253

MOST = 100
"""Predictions of an image that count, the surest first."""

_AREAS = ("all", "small", "medium", "large")

Kind = Literal["bbox", "segm"]

_SHAPES = {
    "bbox": List(Value("float64"), length=4),
    "segm": {"size": List(Value("int64"), length=2), "counts": Value("string")},
}


class AveragePrecision(evaluate.Metric):  # type: ignore[misc]
    """Mean average precision over classes and over overlaps from 0.50 to 0.95, by size and by class.

    One prediction and one reference an image. `shapes` are boxes of x, y, width, height in pixels ("bbox"), or
    masks in COCO's run lengths ("segm"). What is marked as a crowd neither counts as found nor as missed.
    Where nothing of a size or class was to be found its value is -1, as COCO has it.
    """

    def __init__(self, names: Sequence[str], kind: Kind = "bbox") -> None:
        self.names, self.kind = list(names), kind
        super().__init__(keep_in_memory=True, experiment_id="taskrecipe")

    def _info(self) -> evaluate.MetricInfo:
        shapes = {"shapes": List(_SHAPES[self.kind]), "labels": List(Value("int64"))}
        found = {**shapes, "scores": List(Value("float64"))}
        there = {**shapes, "areas": List(Value("float64")), "crowds": List(Value("bool"))}
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="",
            inputs_description="predictions and references, one of each an image",
            features=Features({"predictions": found, "references": there}),
        )

    def _compute(self, predictions: list[dict[str, Any]], references: list[dict[str, Any]]) -> dict[str, float]:
        precision = self._precision(predictions, references)
        by_class = {f"map/{name}": _mean(precision[:, :, k, 0]) for k, name in enumerate(self.names)}
        return {
            "map": _mean(precision[:, :, :, 0]),
            "map_50": _mean(precision[0, :, :, 0]),
            "map_75": _mean(precision[5, :, :, 0]),
            **{f"map_{area}": _mean(precision[:, :, :, a]) for a, area in enumerate(_AREAS) if a},
            **by_class,
        }

    def _precision(self, predictions: list[dict[str, Any]], references: list[dict[str, Any]]) -> Any:
        """Precision by overlap, recall, class and area."""
        from faster_coco_eval import COCO, COCOeval_faster

        truth = COCO(self._annotations(references))
        evaluation = COCOeval_faster(truth, truth.loadRes(self._found(predictions)), self.kind)
        evaluation.params.maxDets = [1, 10, MOST]
        evaluation.evaluate()
        evaluation.accumulate()
        return evaluation.eval["precision"][..., -1]

    def _annotations(self, references: list[dict[str, Any]]) -> dict[str, Any]:
        there = [
            {**self._shape(shape), "image_id": image, "category_id": label, "area": area, "iscrowd": int(crowd)}
            for image, row in enumerate(references)
            for shape, label, area, crowd in zip(row["shapes"], row["labels"], row["areas"], row["crowds"], strict=True)
        ]
        return {
            "images": [{"id": image, **_size(row["shapes"])} for image, row in enumerate(references)],
            "annotations": [{**annotation, "id": number} for number, annotation in enumerate(there, 1)],
            "categories": [{"id": number, "name": name} for number, name in enumerate(self.names)],
        }

    def _found(self, predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**self._shape(shape), "image_id": image, "category_id": label, "score": score}
            for image, row in enumerate(predictions)
            for shape, label, score in zip(row["shapes"], row["labels"], row["scores"], strict=True)
        ]

    def _shape(self, shape: Any) -> dict[str, Any]:
        return {"bbox" if self.kind == "bbox" else "segmentation": shape}


def _size(shapes: Sequence[Any]) -> dict[str, int]:
    """The picture's size, which only masks know and only masks need."""
    height, width = shapes[0]["size"] if shapes and isinstance(shapes[0], dict) else (0, 0)
    return {"height": height, "width": width}


def _mean(precision: Any) -> float:
    known = precision[precision > -1]
    return float(np.mean(known)) if known.size else -1.0
