"""Detectors' losses: transformers' own numbers, and the same gradients however an update is cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.detectors import CONFIGS, SIZE, detector, targets

from taskrecipe.errors import UsageError
from taskrecipe.vision.detection_losses import loss_counts, require_exact_loss, use_exact_loss

COUNTS = [3, 0, 1, 5, 2, 0, 0, 8]
"""Boxes of each image: unequal, some without any, one with more than there are queries."""

SIGMOID = [kind for kind in CONFIGS if kind not in ("detr", "table-transformer", "yolos")]


SINGLE_ONLY = ("dab-detr",)
"""Models whose own code is in single precision throughout."""


def pixels(count: int) -> torch.Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def single(truth: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return [{**target, "boxes": target["boxes"].float()} for target in truth]


def gradients(model: Any, parts: int) -> list[torch.Tensor]:
    """The gradients of one update cut into `parts`, each term weighed as the loop does it."""
    images = pixels(len(COUNTS)).to(model.dtype)
    truth = targets(COUNTS) if model.dtype == torch.float64 else single(targets(COUNTS))
    total = loss_counts(model.config, COUNTS)
    model.zero_grad(set_to_none=True)
    step = len(COUNTS) // parts
    for start in range(0, len(COUNTS), step):
        piece = slice(start, start + step)
        terms = model(pixel_values=images[piece], labels=truth[piece]).loss_dict
        share = loss_counts(model.config, COUNTS[piece])
        assert terms.keys() == share.keys() == total.keys()
        sum(terms[name] * share[name] / total[name] for name in terms if share[name]).backward()
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]


def frozen(model: Any) -> Any:
    """In training, but for batch norm, which no way of adding up gradients can make exact."""
    model.train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.eval()
    return model


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_update_has_the_same_gradients_however_it_is_cut(kind: str) -> None:
    # Denoising draws new noise for every micro-batch, as dropout does.
    quiet = {"num_denoising": 0} if "num_denoising" in CONFIGS[kind] else {}
    precision, tolerance = (torch.float32, 1e-5) if kind in SINGLE_ONLY else (torch.float64, 1e-12)
    model = frozen(detector(kind, **quiet)).to(precision)
    use_exact_loss(model)
    whole = gradients(model, 1)
    largest = max(g.abs().max() for g in whole)
    # On a CPU, torch gets the gradient of a batch norm's bias wrong for a single image.
    for parts in (2, 4) if any(isinstance(layer, torch.nn.BatchNorm2d) for layer in model.modules()) else (2, 4, 8):
        difference = max((a - b).abs().max() for a, b in zip(whole, gradients(model, parts), strict=True))
        assert difference / max(largest, 1.0) < tolerance, (parts, float(difference), float(largest))


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_loss_is_the_one_of_transformers(kind: str) -> None:
    """On one process, where every image has a box: with empty ones sigmoid losses are divided otherwise."""
    model = frozen(detector(kind))
    counts = [3, 1, 5] if kind in SIGMOID else [3, 0, 5]
    batch = {"pixel_values": pixels(3).float(), "labels": single(targets(counts))}
    torch.manual_seed(3)
    theirs = model(**batch).loss
    use_exact_loss(model)
    torch.manual_seed(3)
    outputs = model(**batch)
    assert torch.isclose(outputs.loss, theirs, rtol=1e-5)
    assert torch.isclose(sum(outputs.loss_dict.values()), theirs, rtol=1e-5)


@pytest.mark.parametrize("kind", ["detr", "deformable_detr", "lw_detr", "rt_detr"])
def test_images_without_boxes_train(kind: str) -> None:
    model = frozen(detector(kind)).double()
    use_exact_loss(model)
    outputs = model(pixel_values=pixels(2), labels=targets([0, 0]))
    assert outputs.loss_dict["class"] > 0
    assert outputs.loss_dict["box"] == outputs.loss_dict["giou"] == 0
    outputs.loss.backward()
    assert sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None) > 0


@pytest.mark.parametrize("kind", ["yolos", "lw_detr"])
def test_evaluation_has_a_loss_too(kind: str) -> None:
    model = detector(kind).double().eval()
    use_exact_loss(model)
    with torch.no_grad():
        assert torch.isfinite(model(pixel_values=pixels(3), labels=targets([2, 0, 1])).loss)


@pytest.mark.parametrize("kind", CONFIGS)
def test_labels_change_nothing_that_is_predicted(kind: str) -> None:
    """Denoising queries, which start from the labels, are for training only."""
    model = detector(kind).eval()
    use_exact_loss(model)
    images = pixels(3).float()
    with torch.no_grad():
        without = model(pixel_values=images)
        labeled = model(pixel_values=images, labels=single(targets([2, 0, 1])))
    assert torch.equal(without.logits, labeled.logits)
    assert torch.equal(without.pred_boxes, labeled.pred_boxes)
    assert labeled.loss_dict


def test_what_is_not_finite_is_a_loss_that_is_not() -> None:
    model = frozen(detector("detr")).double()
    use_exact_loss(model)
    with torch.no_grad():
        model.class_labels_classifier.bias.fill_(float("inf"))
    outputs = model(pixel_values=pixels(2), labels=targets([1, 2]))
    assert all(torch.isnan(term) for term in outputs.loss_dict.values())


def test_half_precision_is_added_up_in_single() -> None:
    model = frozen(detector("deformable_detr"))
    use_exact_loss(model)
    with torch.autocast("cpu", torch.bfloat16):
        terms = model(pixel_values=pixels(2).float(), labels=single(targets([1, 2]))).loss_dict
    assert {term.dtype for term in terms.values()} == {torch.float32}


@pytest.mark.parametrize("kind", ["d_fine", "pp_ocrv5_server_det"])
def test_a_loss_that_cannot_be_cut_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="deformable_detr, detr"):
        require_exact_loss(SimpleNamespace(model_type=kind))
