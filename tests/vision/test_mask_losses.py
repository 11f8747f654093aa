"""Losses of mask classifiers: transformers' own numbers, and the same gradients however an update is cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.segmenters import CONFIGS, QUERIES, SIZE, segmenter

from taskrecipe.errors import UsageError
from taskrecipe.vision.mask_losses import Target, loss_counts, loss_terms, require_exact_loss

COUNTS = [3, 0, 1, QUERIES + 2, 2, 0, 0, 1]
"""Masks of each image: unequal, some without any, one with more than there are queries."""


def targets(counts: list[int]) -> list[Target]:
    random = torch.Generator().manual_seed(1)
    return [
        Target(
            torch.randint(3, (count,), generator=random),
            torch.rand(count, SIZE, SIZE, generator=random) < torch.rand(count, 1, 1, generator=random),
            seed=40 + number,
        )
        for number, count in enumerate(counts)
    ]


def pixels(count: int) -> torch.Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def predicted(model: Any, images: torch.Tensor) -> Any:
    hidden = model.config.use_auxiliary_loss
    return model(pixel_values=images, output_auxiliary_logits=True, output_hidden_states=hidden)


def gradients(model: Any, parts: int) -> list[torch.Tensor]:
    """The gradients of one update cut into `parts`, each term weighed as the loop does it."""
    images, truth, total = pixels(len(COUNTS)), targets(COUNTS), loss_counts(model.config, COUNTS)
    model.zero_grad(set_to_none=True)
    step = len(COUNTS) // parts
    for start in range(0, len(COUNTS), step):
        piece = slice(start, start + step)
        found = loss_terms(model.config, predicted(model, images[piece]), truth[piece])
        share = loss_counts(model.config, COUNTS[piece])
        assert found.keys() == share.keys() == total.keys()
        sum(found[name] * share[name] / total[name] for name in found if share[name]).backward()
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_update_has_the_same_gradients_however_it_is_cut(kind: str) -> None:
    model = segmenter(kind).double().train()
    whole = gradients(model, 1)
    largest = max(g.abs().max() for g in whole)
    for parts in (2, 4, 8):
        difference = max((a - b).abs().max() for a, b in zip(whole, gradients(model, parts), strict=True))
        assert difference / max(largest, 1.0) < 1e-12, (parts, float(difference), float(largest))


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("count", [1, 3, QUERIES + 2])
def test_the_loss_is_the_one_of_transformers(kind: str, count: int) -> None:
    """On one image, for which transformers draws the same points from the same seed."""
    model, target = segmenter(kind), targets([count])[0]
    with torch.no_grad():
        outputs = predicted(model, pixels(1).float())
        torch.manual_seed(target.seed)
        theirs = model.get_loss_dict(
            outputs.masks_queries_logits,
            outputs.class_queries_logits,
            [target.masks.float()],
            [target.classes],
            outputs.auxiliary_logits,
        )
    ours = loss_terms(model.config, outputs, [target])
    for name, theirs_name in {"class": "cross_entropy", "mask": "mask", "dice": "dice"}.items():
        expected = sum(value for key, value in theirs.items() if key.startswith(f"loss_{theirs_name}"))
        assert torch.isclose(ours[name], expected, rtol=1e-5), name
    assert len(theirs) > 3  # earlier layers too


def test_many_images_have_the_mean_that_transformers_has() -> None:
    """Where nothing is drawn; and `loss_counts` counts what each mean is over."""
    model, truth = segmenter("maskformer"), targets(COUNTS)
    outputs = predicted(model, pixels(len(COUNTS)).float())
    labels = [target.masks.float() for target in truth], [target.classes for target in truth]
    theirs = model.get_loss_dict(
        outputs.masks_queries_logits, outputs.class_queries_logits, *labels, outputs.auxiliary_logits
    )
    assert torch.isclose(sum(loss_terms(model.config, outputs, truth).values()), sum(theirs.values()), rtol=1e-5)
    matched = 3 + 1 + QUERIES + 2 + 1
    nothing = 0.1 * (len(COUNTS) * QUERIES - matched)
    assert loss_counts(model.config, COUNTS) == pytest.approx({"class": matched + nothing, "mask": 13, "dice": 13})


def test_points_are_drawn_by_the_seed_of_the_image() -> None:
    model, (target,) = segmenter("mask2former"), targets([3])
    outputs = predicted(model, pixels(1).float())
    first, again = (loss_terms(model.config, outputs, [target])["dice"] for _ in range(2))
    other = loss_terms(model.config, outputs, [Target(target.classes, target.masks, target.seed + 1)])["dice"]
    assert first == again != other


@pytest.mark.parametrize("kind", CONFIGS)
def test_images_without_masks_train(kind: str) -> None:
    model = segmenter(kind).double()
    found = loss_terms(model.config, predicted(model, pixels(2)), targets([0, 0]))
    assert found["class"] > 0
    assert found["mask"] == found["dice"] == 0
    sum(found.values()).backward()
    assert sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None) > 0


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_not_finite_is_a_loss_that_is_not(kind: str) -> None:
    model = segmenter(kind).double()
    with torch.no_grad():
        model.class_predictor.bias.fill_(float("inf"))
    found = loss_terms(model.config, predicted(model, pixels(2)), targets([1, 2]))
    assert all(torch.isnan(term) for term in found.values())


def test_half_precision_is_added_up_in_single() -> None:
    model = segmenter("mask2former")
    with torch.autocast("cpu", torch.bfloat16):
        outputs = predicted(model, pixels(2).float())
    assert outputs.masks_queries_logits.dtype == torch.bfloat16
    assert {term.dtype for term in loss_terms(model.config, outputs, targets([1, 2])).values()} == {torch.float32}


def test_a_loss_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'oneformer'.*mask2former, maskformer"):
        require_exact_loss(SimpleNamespace(model_type="oneformer"))
