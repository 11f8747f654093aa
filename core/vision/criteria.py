"""Detectors' losses, each term a mean over items that can be counted before the model runs.

transformers divides by the boxes of the micro-batch, averaged over processes and never less than one; sums of
such means depend on how an update is cut. Here its matchers and criteria are used as they are, but with a
divisor that adds up:

    softmax losses     class: the class weights of all queries; boxes: the boxes, as transformers does
    sigmoid losses     every term: the boxes, an image without any counting as one

An image without boxes still says that nothing is there, which sigmoid losses divide by boxes too: were it to
count as none, it would weigh nothing in a micro-batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from taskrecipe.core.errors import UsageError

if TYPE_CHECKING:
    import torch

Target = Mapping[str, "torch.Tensor"]
"""What is in one image: `class_labels` (n,) and `boxes` (n, 4) of centre and size, relative to the image."""

TERMS = {"loss_ce": "class", "loss_vfl": "class", "loss_bbox": "box", "loss_giou": "giou"}
"""Our name of each loss of transformers' criteria."""

Family = TypeVar("Family")

KINDS = ["labels", "boxes"]
"""What criteria are asked for; transformers also counts boxes, which trains nothing."""


@dataclass
class Layer:
    """What one layer of a detector predicts; `share` is its part where several copies of each box are matched."""

    logits: torch.Tensor
    boxes: torch.Tensor
    matches: Any = None
    share: float = 1.0


def require_exact_loss(config: Any) -> None:
    """Refuse, by `UsageError`, a model whose loss can't be put in these terms."""
    _family(config)


def use_exact_loss(model: Any) -> None:
    """Make a detector report its loss terms, as means over what `weights` counts, in `outputs.loss_dict`."""
    model.loss_function = exact_loss


def weights(config: Any, box_counts: Sequence[int]) -> dict[str, float]:
    """How many items each loss term is a mean over, for images with so many boxes each."""
    return _family(config).weights(config, box_counts)


def exact_loss(*predicted: Any, **more: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], None]:
    """What a model calls, as it calls transformers' own: returns the loss, its terms, and no auxiliary outputs."""
    call = Call(*predicted)
    call.more = more
    terms = _family(call.config).terms(call)
    return sum(terms.values()), terms, None  # type: ignore[return-value]


@dataclass
class Call:
    """What a model hands to its loss function."""

    logits: torch.Tensor
    targets: Sequence[Target]
    device: torch.device
    boxes: torch.Tensor
    config: Any
    all_logits: Any = None
    """Of every layer, the last included, where the earlier ones are trained too."""
    all_boxes: Any = None
    first_logits: Any = None
    """Of the encoder, where it proposes."""
    first_boxes: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def layers(self) -> list[Layer]:
        """The last layer, and the earlier ones where they are trained too."""
        last = Layer(self.logits, self.boxes)
        if not self.config.auxiliary_loss:
            return [last]
        return [last, *(Layer(*pair) for pair in zip(self.all_logits[:-1], self.all_boxes[:-1], strict=True))]

    def costs(self) -> tuple[float, float, float]:
        """What matching weighs class, box and overlap with."""
        return self.config.class_cost, self.config.bbox_cost, self.config.giou_cost

    def coefficients(self) -> dict[str, float]:
        """What the loss weighs class, box and overlap with."""
        config = self.config
        return {
            "loss_ce": getattr(config, "class_loss_coefficient", 1.0),
            "loss_bbox": config.bbox_loss_coefficient,
            "loss_giou": config.giou_loss_coefficient,
        }

    def box_counts(self) -> list[int]:
        """How many boxes each image has."""
        return [len(target["class_labels"]) for target in self.targets]


def _softmax_weights(config: Any, box_counts: Sequence[int]) -> dict[str, float]:
    queries = config.num_detection_tokens if config.model_type == "yolos" else config.num_queries
    matched = sum(min(count, queries) for count in box_counts)
    unmatched = len(box_counts) * queries - matched
    boxes = float(sum(box_counts))
    return {"class": matched + config.eos_coefficient * unmatched, "box": boxes, "giou": boxes}


def _sigmoid_weights(_: Any, box_counts: Sequence[int]) -> dict[str, float]:
    return dict.fromkeys(("class", "box", "giou"), float(sum(max(count, 1) for count in box_counts)))


def _softmax_terms(call: Call) -> dict[str, torch.Tensor]:
    """DETR, YOLOS, Table Transformer: cross-entropy over the classes and 'nothing'."""
    config, losses = call.config, _losses("for_object_detection")
    matcher = losses.HungarianMatcher(*call.costs())
    criterion = losses.ImageLoss(matcher, config.num_labels, config.eos_coefficient, KINDS)
    criterion.to(call.device, full(call.logits).dtype)
    criterion.empty_weight[-1] = config.eos_coefficient  # rounded to this precision, not to a lower one before
    boxes = max(1, sum(call.box_counts()))
    return _terms(criterion, call.layers(), call.targets, boxes, call.coefficients())


def _focal_terms(call: Call) -> dict[str, torch.Tensor]:
    """Conditional, Deformable and DAB-DETR: a focal loss for each class."""
    config, losses = call.config, _losses("deformable_detr")
    matcher = losses.DeformableDetrHungarianMatcher(*call.costs())
    criterion = losses.DeformableDetrImageLoss(matcher, config.num_labels, config.focal_alpha, KINDS)
    boxes = sum(max(1, count) for count in call.box_counts())
    return _terms(criterion, call.layers(), call.targets, boxes, call.coefficients())


def _grouped_terms(call: Call) -> dict[str, torch.Tensor]:
    """LW-DETR and RF-DETR: every box is matched once in each group of queries; evaluation has one group."""
    config, losses = call.config, _losses("lw_detr")
    groups = call.logits.shape[1] // config.num_queries
    matcher = partial(losses.LwDetrHungarianMatcher(*call.costs()), group_detr=groups)
    criterion = losses.LwDetrImageLoss(matcher, config.num_labels, config.focal_alpha, KINDS, groups)
    layers = [*call.layers(), Layer(call.first_logits, call.first_boxes)]
    boxes = groups * sum(max(1, count) for count in call.box_counts())
    return _terms(criterion, layers, call.targets, boxes, call.coefficients())


def _denoising_terms(call: Call) -> dict[str, torch.Tensor]:
    """RT-DETR: a varifocal loss, with further queries in training that start from noisy copies of the boxes."""
    criterion = _losses("rt_detr").RTDetrLoss(call.config)
    found, noisy = _without_noise(call)
    layers = [Layer(*pair) for pair in found]
    if call.config.auxiliary_loss:
        layers.append(Layer(call.more["enc_topk_logits"], call.more["enc_topk_bboxes"]))
        meta = call.more["denoising_meta_values"]
        matches = criterion.get_cdn_matched_indices(meta, call.targets) if noisy else None
        layers += [Layer(logits, boxes, matches, 1 / meta["dn_num_group"]) for logits, boxes in noisy]
    else:
        layers = layers[-1:]
    items = sum(max(1, count) for count in call.box_counts())
    return _terms(criterion, layers, call.targets, items, criterion.weight_dict)


def _without_noise(call: Call) -> tuple[list[Any], list[Any]]:
    """Each layer's logits and boxes: those of ordinary queries, and those that started from noisy boxes."""
    meta = call.more["denoising_meta_values"]
    layers = list(zip(call.all_logits.unbind(1), call.all_boxes.unbind(1), strict=True))
    if meta is None:
        return layers, []
    noise = meta["dn_num_split"][0]
    return [(c[:, noise:], b[:, noise:]) for c, b in layers], [(c[:, :noise], b[:, :noise]) for c, b in layers]


@dataclass(frozen=True)
class _Family:
    weights: Callable[[Any, Sequence[int]], dict[str, float]]
    terms: Callable[[Call], dict[str, torch.Tensor]]


_FAMILIES = {
    **dict.fromkeys(("detr", "yolos", "table-transformer"), _Family(_softmax_weights, _softmax_terms)),
    **dict.fromkeys(("conditional_detr", "deformable_detr", "dab-detr"), _Family(_sigmoid_weights, _focal_terms)),
    **dict.fromkeys(("lw_detr", "rf_detr"), _Family(_sigmoid_weights, _grouped_terms)),
    **dict.fromkeys(("rt_detr", "rt_detr_v2"), _Family(_sigmoid_weights, _denoising_terms)),
}


def _family(config: Any) -> _Family:
    return known(_FAMILIES, config)


def known(families: Mapping[str, Family], config: Any) -> Family:
    """The one of `families` that the model belongs to; one of another type is refused."""
    if config.model_type not in families:
        raise UsageError(
            f"[model] is of type {config.model_type!r}, whose loss can't be cut into micro-batches exactly; "
            f"these can: {', '.join(sorted(families))}"
        )
    return families[config.model_type]


def _terms(
    criterion: Any, layers: Sequence[Layer], targets: Sequence[Target], items: float, coefficients: Mapping[str, float]
) -> dict[str, torch.Tensor]:
    """Each term, added up over layers, times its coefficient; NaN if a prediction is.

    Matching would raise on what is not finite; the loop knows better what to say.
    """
    import torch

    values = [tensor for layer in layers for tensor in (layer.logits, layer.boxes)]
    if not bool(torch.stack([torch.isfinite(tensor).all() for tensor in values]).all()):
        return dict.fromkeys(TERMS.values(), torch.stack([tensor.sum() for tensor in values]).sum() * torch.nan)
    terms = dict.fromkeys(TERMS.values(), full(values[0]).new_zeros(()))
    for layer in layers:
        outputs = {"logits": full(layer.logits), "pred_boxes": full(layer.boxes)}
        matches = layer.matches or criterion.matcher(outputs, targets)
        for kind in criterion.losses:
            for name, value in criterion.get_loss(kind, outputs, targets, matches, items).items():
                terms[TERMS[name]] = terms[TERMS[name]] + coefficients[name] * layer.share * value
    return terms


def _losses(family: str) -> Any:
    return import_module(f"transformers.loss.loss_{family}")


def full(values: torch.Tensor) -> torch.Tensor:
    """The values in single precision at least, whatever the model runs in: matching and sums need it."""
    import torch

    return values if values.dtype == torch.float64 else values.float()
