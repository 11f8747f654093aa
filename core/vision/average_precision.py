"""COCO's average precision, as an `evaluate` module that is defined here, so that nothing is downloaded.

Recipes import it inside methods, since `evaluate` is heavy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import evaluate  # noqa: TID253
import numpy as np
from datasets import Features, List, Value  # noqa: TID253

MOST_PREDICTIONS = 100
"""How many predictions of an image count: those with the highest scores."""

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
    The value of a size or class that no object has is NaN: there is nothing to measure.
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
        matched = self.match_images(predictions, references)
        return self._summarize(_accumulate(matched._paramsEval, matched._evalImgs_cpp))

    def _summarize(self, precision: Any) -> dict[str, float]:
        """Return the metrics from the precision by overlap, recall, class and area."""
        by_class = {f"map/{name}": _mean(precision[:, :, k, 0]) for k, name in enumerate(self.names)}
        return {
            "map": _mean(precision[:, :, :, 0]),
            "map_50": _mean(precision[0, :, :, 0]),
            "map_75": _mean(precision[5, :, :, 0]),
            **{f"map_{area}": _mean(precision[:, :, :, a]) for a, area in enumerate(_AREAS) if a},
            **by_class,
        }

    def match_images(self, predictions: list[dict[str, Any]], references: list[dict[str, Any]]) -> Any:
        """Compare predictions and objects image by image, and return what can be accumulated over any of the images."""
        from faster_coco_eval import COCO, COCOeval_faster

        truth = COCO(self._annotations(references))
        found = truth.loadRes(self._found(predictions))
        evaluation = COCOeval_faster(truth, found, self.kind, separate_eval=True)
        evaluation.params.maxDets = [MOST_PREDICTIONS]
        evaluation.evaluate()
        return evaluation

    def score_images(self, matched: Any, chosen: Iterable[int]) -> dict[str, float]:
        """Return the metrics over chosen images, of which some may come several times, after `match_images`."""
        count = len(matched.params.imgIds)
        groups = range(0, len(matched._evalImgs_cpp), count)  # one for each class and area, with all images in it
        images = [int(image) for image in chosen]
        kept = [matched._evalImgs_cpp[start + image] for start in groups for image in images]
        parameters = copy.copy(matched._paramsEval)
        parameters.imgIds = list(range(len(images)))
        return self._summarize(_accumulate(parameters, kept))

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


def _accumulate(parameters: Any, images: list[Any]) -> Any:
    from faster_coco_eval import faster_eval_api_cpp

    return faster_eval_api_cpp.COCOevalAccumulate(parameters, images)["precision"][..., -1]


def _size(shapes: Sequence[Any]) -> dict[str, int]:
    """Return the image's size, which only masks hold and only masks need."""
    height, width = shapes[0]["size"] if shapes and isinstance(shapes[0], dict) else (0, 0)
    return {"height": height, "width": width}


def _mean(precision: Any) -> float:
    measured = precision[precision > -1]  # COCO's tools write -1 where there was nothing to find
    return float(np.mean(measured)) if measured.size else math.nan
