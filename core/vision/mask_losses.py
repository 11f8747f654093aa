"""Losses of models that classify masks, each term a mean over items that can be counted before the model runs.

transformers divides by the masks of the micro-batch, averaged over processes, and compares masks at points that it
draws for a whole micro-batch at once; both depend on how an update is split. Here every image is matched and
compared separately, with transformers' own costs and losses, at points drawn from the image's own seed:

    class         a mean over all queries; those that match no object have the model's lower weight
    mask, dice    means over the masks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from taskrecipe.vision.detection_losses import find_family, to_full_precision

if TYPE_CHECKING:
    import torch

TERMS = ("class", "mask", "dice")


@dataclass(frozen=True)
class Target:
    """What is in one image."""

    classes: torch.Tensor
    """(n,)"""
    masks: torch.Tensor
    """(n, height, width)"""
    seed: int
    """The seed of the points at which masks are compared."""


@dataclass(frozen=True)
class Layer:
    """What one layer predicts."""

    classes: torch.Tensor
    """(images, queries, classes and 'nothing')"""
    masks: torch.Tensor
    """(images, queries, height, width)"""


class Sampling(Protocol):
    """Selects the points at which the masks of one image are compared: predicted and true ones, as (n, points)."""

    def for_matching(self, found: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of every predicted mask and every true one."""

    def for_loss(self, found: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of predicted masks and of the true ones they were matched with."""


def require_exact_loss(config: Any) -> None:
    """Raise `UsageError` for a model whose loss can't be computed exactly in micro-batches."""
    _family(config)


def loss_counts(config: Any, mask_counts: Sequence[int]) -> dict[str, float]:
    """Return how many items each loss term is a mean over, given the number of masks in each image."""
    queries = _family(config).queries(config)
    matched = sum(min(count, queries) for count in mask_counts)
    unmatched = len(mask_counts) * queries - matched
    masks = float(sum(mask_counts))
    return {"class": matched + config.no_object_weight * unmatched, "mask": masks, "dice": masks}


def loss_terms(config: Any, outputs: Any, targets: Sequence[Target]) -> dict[str, torch.Tensor]:
    """Return each term, summed over layers, as the mean over what `loss_counts` counts.

    `outputs` must have auxiliary logits. Terms are NaN if a prediction is not finite.
    """
    import torch

    layers = _layers(outputs)
    values = [tensor for layer in layers for tensor in (layer.classes, layer.masks)]
    if not bool(torch.stack([torch.isfinite(tensor).all() for tensor in values]).all()):
        return dict.fromkeys(TERMS, torch.stack([tensor.sum() for tensor in values]).sum() * torch.nan)
    criteria = [_Criterion(config, target) for target in targets]
    sums = [
        criterion.sums(to_full_precision(classes), to_full_precision(masks))
        for layer in layers
        for criterion, classes, masks in zip(criteria, layer.classes, layer.masks, strict=True)
    ]
    items = loss_counts(config, [len(target.classes) for target in targets])
    totals = torch.stack(sums).sum(0)
    return {name: total / (items[name] or 1) for name, total in zip(TERMS, totals, strict=True)}


def _layers(outputs: Any) -> list[Layer]:
    auxiliary = [
        Layer(layer["class_queries_logits"], layer["masks_queries_logits"]) for layer in outputs.auxiliary_logits
    ]
    return [Layer(outputs.class_queries_logits, outputs.masks_queries_logits), *auxiliary]


class _Criterion:
    """Compares the predictions of each layer for one image with its objects."""

    def __init__(self, config: Any, target: Target) -> None:
        self.config, self.target = config, target
        family = _family(config)
        self.sampling = family.sampling(config, target)
        self.class_cost, self.class_weight = family.class_weights(config)
        theirs = import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
        self.mask_cost, self.mask_loss = (getattr(theirs, kind + family.mask_loss) for kind in ("pair_wise_", ""))
        self.dice_cost, self.dice_loss = theirs.pair_wise_dice_loss, theirs.dice_loss

    def sums(self, classes: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Return the sums of the three terms, each times its coefficient."""
        import torch

        true = self.target.masks.to(masks.dtype)
        queries, objects = self._matches(classes, masks, true)
        found, wanted = self.sampling.for_loss(masks[queries], true[objects])
        return torch.stack(
            [
                self.class_weight * self._class_loss(classes, queries, objects),
                self.config.mask_weight * self.mask_loss(found, wanted, 1),
                self.config.dice_weight * self.dice_loss(found, wanted, 1),
            ]
        )

    def _class_loss(self, classes: torch.Tensor, queries: torch.Tensor, objects: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        nothing = classes.shape[-1] - 1
        wanted = self.target.classes.new_full((len(classes),), nothing)
        wanted[queries] = self.target.classes[objects]
        weight = classes.new_ones(nothing + 1)
        weight[nothing] = self.config.no_object_weight
        return cross_entropy(classes, wanted, weight, reduction="sum")

    def _matches(self, classes: torch.Tensor, masks: torch.Tensor, true: torch.Tensor) -> list[torch.Tensor]:
        """Return the queries that are closest to the objects, one for each, and these objects."""
        import torch
        from scipy.optimize import linear_sum_assignment

        with torch.no_grad():
            found, wanted = self.sampling.for_matching(masks, true)
            cost = -self.class_cost * classes.softmax(-1)[:, self.target.classes]
            cost = cost + self.config.mask_weight * self.mask_cost(found, wanted)
            cost = cost + self.config.dice_weight * self.dice_cost(found, wanted)
        return [torch.as_tensor(pairs, device=masks.device) for pairs in linear_sum_assignment(cost.cpu().numpy())]


class _WholeMasks:
    """MaskFormer compares masks at every pixel."""

    def __init__(self, config: Any, target: Target) -> None:
        pass

    def for_matching(self, found: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torch.nn.functional import interpolate

        true = interpolate(true[:, None], size=found.shape[-2:], mode="nearest")
        return found.flatten(1), true.flatten(1)

    def for_loss(self, found: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torch.nn.functional import interpolate

        found = interpolate(found[:, None], size=true.shape[-2:], mode="bilinear", align_corners=False)
        return found.flatten(1), true.flatten(1)


class _RandomPoints:
    """Mask2Former compares masks at random points, most of them where a predicted mask is least certain."""

    def __init__(self, config: Any, target: Target) -> None:
        import torch

        self.config = config
        self.generator = torch.Generator(target.masks.device).manual_seed(target.seed)

    def for_matching(self, found: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = self._draw(1, self.config.train_num_points, found)
        return _at(found, points.expand(len(found), -1, -1)), _at(true, points.expand(len(true), -1, -1))

    def for_loss(self, found: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = self._unsure(found.detach())
        return _at(found, points), _at(true, points)

    def _unsure(self, found: torch.Tensor) -> torch.Tensor:
        import torch

        count = self.config.train_num_points
        chosen = int(self.config.importance_sample_ratio * count)
        points = self._draw(len(found), int(count * self.config.oversample_ratio), found)
        least_sure = _at(found, points).abs().topk(chosen, largest=False).indices
        kept = points.gather(1, least_sure[..., None].expand(-1, -1, 2))
        return torch.cat([kept, self._draw(len(found), count - chosen, found)], dim=1)

    def _draw(self, masks: int, points: int, like: torch.Tensor) -> torch.Tensor:
        """Return points of each mask as shares of its width and height."""
        import torch

        return torch.rand(masks, points, 2, generator=self.generator, device=like.device).to(like.dtype)


def _at(masks: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return the values of masks (n, height, width) at points (n, points, 2)."""
    from torch.nn.functional import grid_sample

    return grid_sample(masks[:, None], 2 * points[:, :, None] - 1, align_corners=False).flatten(1)


@dataclass(frozen=True)
class _Family:
    sampling: Callable[[Any, Target], Sampling]
    mask_loss: str
    """The name of the function in transformers that compares masks pixel by pixel."""
    queries: Callable[[Any], int]
    class_weights: Callable[[Any], tuple[float, float]]
    """The weight of the class in matching, and in the loss."""


_FAMILIES = {
    "mask2former": _Family(
        sampling=_RandomPoints,
        mask_loss="sigmoid_cross_entropy_loss",
        queries=lambda config: int(config.num_queries),
        class_weights=lambda config: (config.class_weight, config.class_weight),
    ),
    "maskformer": _Family(
        sampling=_WholeMasks,
        mask_loss="sigmoid_focal_loss",
        queries=lambda config: int(config.decoder_config.num_queries),
        class_weights=lambda config: (1.0, config.cross_entropy_weight),
    ),
}


def _family(config: Any) -> _Family:
    return find_family(_FAMILIES, config)
