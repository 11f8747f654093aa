"""Average precision: pycocotools' numbers on the same boxes and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskrecipe.vision.average_precision import AveragePrecision

NAMES = ["cat", "dog", "small"]
METRICS = ["map", "map_50", "map_75", "map_small", "map_medium", "map_large"]


def references(random: np.random.Generator, images: int = 30) -> list[dict[str, Any]]:
    """Images with 0 to 8 objects of all sizes, some of them crowds; the last class is in none."""
    rows = []
    for _ in range(images):
        count = int(random.integers(0, 9))
        corner, size = random.uniform(0, 300, (count, 2)), np.exp(random.uniform(1.5, 5.3, (count, 2)))
        rows.append(
            {
                "shapes": np.concatenate([corner, size], axis=1),
                "labels": random.integers(0, 2, count),
                "areas": size.prod(1) * random.uniform(0.5, 1.0, count),
                "crowds": random.random(count) < 0.15,
            }
        )
    return rows


def predictions(random: np.random.Generator, truth: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a fair detector finds: most objects, some twice, some of the wrong class, and some that are not there."""
    rows = []
    for row in truth:
        found = random.random(len(row["labels"])) < 0.8
        shapes = np.concatenate([row["shapes"][found], row["shapes"][:2], random.uniform(5, 200, (3, 4))])
        shapes = shapes + random.normal(0, 0.04, shapes.shape) * np.tile(shapes[:, 2:], 2)
        labels = np.concatenate([row["labels"][found], row["labels"][:2], random.integers(0, 3, 3)])
        labels[:1] = random.integers(0, 2, len(labels[:1]))
        scores = random.random(len(labels)) + np.arange(len(labels), 0, -1) * 0.2
        rows.append({"shapes": shapes, "labels": labels, "scores": scores})
    return rows


def by_pycocotools(truth: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, float]:
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    there = [
        {
            "image_id": image,
            "bbox": list(map(float, row["shapes"][i])),
            "category_id": int(row["labels"][i]),
            "area": float(row["areas"][i]),
            "iscrowd": int(row["crowds"][i]),
        }
        for image, row in enumerate(truth)
        for i in range(len(row["labels"]))
    ]
    results = [
        {
            "image_id": image,
            "bbox": list(map(float, row["shapes"][i])),
            "category_id": int(row["labels"][i]),
            "score": float(row["scores"][i]),
        }
        for image, row in enumerate(found)
        for i in range(len(row["labels"]))
    ]
    data = coco.COCO()
    data.dataset = {
        "images": [{"id": image} for image in range(len(truth))],
        "annotations": [{**annotation, "id": number} for number, annotation in enumerate(there, 1)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(NAMES)],
        "info": {},
    }
    data.createIndex()
    evaluation = cocoeval.COCOeval(data, data.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    numbers = dict(zip(METRICS, evaluation.stats[:6], strict=True))
    for number, name in enumerate(NAMES):
        precision = evaluation.eval["precision"][:, :, number, 0, 2]
        numbers[f"map/{name}"] = precision[precision > -1].mean() if (precision > -1).any() else np.nan
    return {name: np.nan if value == -1 else value for name, value in numbers.items()}  # where COCO writes -1


@pytest.mark.parametrize("seed", range(4))
def test_boxes_score_as_with_pycocotools(seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = references(random)
    found = predictions(random, truth)
    ours = AveragePrecision(NAMES).compute(predictions=found, references=truth)
    assert ours == pytest.approx(by_pycocotools(truth, found), abs=1e-12, nan_ok=True)
    assert 0.2 < ours["map"] < 0.9
    assert np.isnan(ours["map/small"])


def test_what_is_perfect_scores_one_and_nothing_scores_zero() -> None:
    truth = references(np.random.default_rng(0))
    for row in truth:
        row["crowds"] = np.zeros(len(row["labels"]), dtype=bool)
    perfect = [{"shapes": r["shapes"], "labels": r["labels"], "scores": np.ones(len(r["labels"]))} for r in truth]
    nothing = [{"shapes": [], "labels": [], "scores": []} for _ in truth]
    metric = AveragePrecision(NAMES)
    assert metric.compute(predictions=perfect, references=truth)["map"] == pytest.approx(1.0)
    assert metric.compute(predictions=nothing, references=truth)["map"] == 0.0


def test_what_is_found_in_a_crowd_is_no_mistake() -> None:
    crowd = {"shapes": [[0, 0, 100, 100]], "labels": [0], "areas": [10_000], "crowds": [True]}
    single = {"shapes": [[200, 200, 50, 50]], "labels": [0], "areas": [2_500], "crowds": [False]}
    truth = {key: crowd[key] + single[key] for key in crowd}
    found = {
        "shapes": [[10, 10, 20, 20], [50, 50, 20, 20], [200, 200, 50, 50]],
        "labels": [0] * 3,
        "scores": [0.9, 0.8, 0.7],
    }
    metric = AveragePrecision(["one"])
    assert metric.compute(predictions=[found], references=[truth])["map"] == pytest.approx(1.0)
    without = {key: values[1:] for key, values in truth.items()}
    assert metric.compute(predictions=[found], references=[without])["map"] < 0.5


def test_masks_are_measured_by_their_overlap() -> None:
    mask = pytest.importorskip("faster_coco_eval.core.mask")

    def encoded(pixels: np.ndarray) -> dict[str, Any]:
        code = mask.encode(np.asfortranarray(pixels.astype(np.uint8)))
        return {"size": list(code["size"]), "counts": code["counts"].decode()}

    round_one, square = np.zeros((40, 40), bool), np.zeros((40, 40), bool)
    square[5:25, 5:25] = True
    round_one[5:25, 5:15] = True
    truth = [{"shapes": [encoded(square)], "labels": [0], "areas": [400], "crowds": [False]}]
    metric = AveragePrecision(["one"], "segm")
    for shape, value in ((square, 1.0), (round_one, 0.1)):  # half of it overlaps at one threshold of ten, 0.50
        found = [{"shapes": [encoded(shape)], "labels": [0], "scores": [0.5]}]
        assert metric.compute(predictions=found, references=truth)["map"] == pytest.approx(value)
