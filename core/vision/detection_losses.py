"""Detectors' losses, each term a mean over items that can be counted before the model runs.

transformers divides by the boxes of the micro-batch, averaged over processes and never less than one; sums of
such means depend on how an update is split. Here its matchers and criteria are used as they are, but with a
divisor that adds up:

    softmax losses     class: the class weights of all queries; boxes: the boxes, as transformers does
    sigmoid losses     every term: the boxes, an image without any counting as one

An image without boxes still teaches that nothing is there, and sigmoid losses divide that by boxes too: if it
counted as none, it would have no weight in a micro-batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from taskrecipe.errors import UsageError

if TYPE_CHECKING:
    import torch

Target = Mapping[str, "torch.Tensor"]
"""What is in one image: `class_labels` (n,) and `boxes` (n, 4) of center and size, relative to the image."""

TERMS = {"loss_ce": "class", "loss_vfl": "class", "loss_bbox": "box", "loss_giou": "giou"}
"""Our name of each loss of transformers' criteria."""

Family = TypeVar("Family")

KINDS = ["labels", "boxes"]
"""The losses that are computed. transformers also computes one that counts boxes, which trains nothing."""


@dataclass
class Layer:
    """What one layer of a detector predicts. `share` is its weight where several copies of each box are matched."""

    logits: torch.Tensor
    boxes: torch.Tensor
    matches: Any = None
    share: float = 1.0


def require_exact_loss(config: Any) -> None:
    """Raise `UsageError` for a model whose loss can't be computed exactly in micro-batches."""
    _family(config)


def use_exact_loss(model: Any) -> None:
    """Make a detector report its loss terms, as means over what `loss_counts` counts, in `outputs.loss_dict`."""
    model.loss_function = exact_loss


def loss_counts(config: Any, box_counts: Sequence[int]) -> dict[str, float]:
    """Return how many items each loss term is a mean over, given the number of boxes in each image."""
    return _family(config).loss_counts(config, box_counts)


def exact_loss(*predicted: Any, **more: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], None]:
    """Replace the loss function that a model calls: return the loss, its terms, and no auxiliary outputs."""
    call = Call(*predicted)
    call.more = more
    terms = _family(call.config).loss_terms(call)
    return sum(terms.values()), terms, None  # type: ignore[return-value]


@dataclass
class Call:
    """The arguments that a model calls its loss function with."""

    logits: torch.Tensor
    targets: Sequence[Target]
    device: torch.device
    boxes: torch.Tensor
    config: Any
    all_logits: Any = None
    """Of every layer, including the last, if the earlier ones are trained too."""
    all_boxes: Any = None
    first_logits: Any = None
    """Of the encoder, if it proposes boxes."""
    first_boxes: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def layers(self) -> list[Layer]:
        """Return the last layer, and the earlier ones if they are trained too."""
        last = Layer(self.logits, self.boxes)
        if not self.config.auxiliary_loss:
            return [last]
        return [last, *(Layer(*pair) for pair in zip(self.all_logits[:-1], self.all_boxes[:-1], strict=True))]

    def costs(self) -> tuple[float, float, float]:
        """Return the weights of class, box and overlap in matching."""
        return self.config.class_cost, self.config.bbox_cost, self.config.giou_cost

    def coefficients(self) -> dict[str, float]:
        """Return the weights of class, box and overlap in the loss."""
        config = self.config
        return {
            "loss_ce": getattr(config, "class_loss_coefficient", 1.0),
            "loss_bbox": config.bbox_loss_coefficient,
            "loss_giou": config.giou_loss_coefficient,
        }

    def box_counts(self) -> list[int]:
        """Return how many boxes each image has."""
        return [len(target["class_labels"]) for target in self.targets]


def _softmax_counts(config: Any, box_counts: Sequence[int]) -> dict[str, float]:
    queries = config.num_detection_tokens if config.model_type == "yolos" else config.num_queries
    matched = sum(min(count, queries) for count in box_counts)
    unmatched = len(box_counts) * queries - matched
    boxes = float(sum(box_counts))
    return {"class": matched + config.eos_coefficient * unmatched, "box": boxes, "giou": boxes}


def _sigmoid_counts(_: Any, box_counts: Sequence[int]) -> dict[str, float]:
    return dict.fromkeys(("class", "box", "giou"), float(sum(max(count, 1) for count in box_counts)))


def _softmax_terms(call: Call) -> dict[str, torch.Tensor]:
    """DETR, YOLOS, Table Transformer: cross-entropy over the classes and 'nothing'."""
    config, losses = call.config, _losses("for_object_detection")
    matcher = losses.HungarianMatcher(*call.costs())
    criterion = losses.ImageLoss(matcher, config.num_labels, config.eos_coefficient, KINDS)
    criterion.to(call.device, to_full_precision(call.logits).dtype)
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
    """Return each layer's logits and boxes: those of ordinary queries, and those that started from noisy boxes."""
    meta = call.more["denoising_meta_values"]
    layers = list(zip(call.all_logits.unbind(1), call.all_boxes.unbind(1), strict=True))
    if meta is None:
        return layers, []
    noise = meta["dn_num_split"][0]
    return [(c[:, noise:], b[:, noise:]) for c, b in layers], [(c[:, :noise], b[:, :noise]) for c, b in layers]


@dataclass(frozen=True)
class _Family:
    loss_counts: Callable[[Any, Sequence[int]], dict[str, float]]
    loss_terms: Callable[[Call], dict[str, torch.Tensor]]


_FAMILIES = {
    **dict.fromkeys(("detr", "yolos", "table-transformer"), _Family(_softmax_counts, _softmax_terms)),
    **dict.fromkeys(("conditional_detr", "deformable_detr", "dab-detr"), _Family(_sigmoid_counts, _focal_terms)),
    **dict.fromkeys(("lw_detr", "rf_detr"), _Family(_sigmoid_counts, _grouped_terms)),
    **dict.fromkeys(("rt_detr", "rt_detr_v2"), _Family(_sigmoid_counts, _denoising_terms)),
}


def _family(config: Any) -> _Family:
    return find_family(_FAMILIES, config)


def find_family(families: Mapping[str, Family], config: Any) -> Family:
    """Return the family of the model's type; raise `UsageError` if there is none."""
    if config.model_type not in families:
        raise UsageError(
            f"[model] is of type {config.model_type!r}, whose loss can't be computed exactly in micro-batches; "
            f"these can: {', '.join(sorted(families))}"
        )
    return families[config.model_type]


def _terms(
    criterion: Any, layers: Sequence[Layer], targets: Sequence[Target], items: float, coefficients: Mapping[str, float]
) -> dict[str, torch.Tensor]:
    """Return each term, summed over layers and times its coefficient. It is NaN if a prediction is not finite.

    Matching would raise an error for such predictions; the loop has a better message.
    """
    import torch

    values = [tensor for layer in layers for tensor in (layer.logits, layer.boxes)]
    if not bool(torch.stack([torch.isfinite(tensor).all() for tensor in values]).all()):
        return dict.fromkeys(TERMS.values(), torch.stack([tensor.sum() for tensor in values]).sum() * torch.nan)
    terms = dict.fromkeys(TERMS.values(), to_full_precision(values[0]).new_zeros(()))
    for layer in layers:
        outputs = {"logits": to_full_precision(layer.logits), "pred_boxes": to_full_precision(layer.boxes)}
        matches = layer.matches or criterion.matcher(outputs, targets)
        for kind in criterion.losses:
            for name, value in criterion.get_loss(kind, outputs, targets, matches, items).items():
                terms[TERMS[name]] = terms[TERMS[name]] + coefficients[name] * layer.share * value
    return terms


def _losses(family: str) -> Any:
    return import_module(f"transformers.loss.loss_{family}")


def to_full_precision(values: torch.Tensor) -> torch.Tensor:
    """Return the values in at least single precision, which matching and sums need."""
    import torch

    return values if values.dtype == torch.float64 else values.float()
