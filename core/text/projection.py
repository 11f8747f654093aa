"""The loss of a language model without all of its logits at once.

The last layer of a language model turns each hidden state into one logit for every token of the vocabulary. For long
rows and large vocabularies these logits, and the gradients of them, need far more memory than the rest of the model.
Here only the positions that are predicted are projected, a chunk of them at a time. In training the gradients of a
chunk are computed at once, while its logits are still there, so nothing is computed twice.

`find_projection` tries on the model itself that this gives what the model gives; where it doesn't, the model's own
logits are used. The input of the last layer is taken by a hook, so all weights are still used inside of the model's
forward pass, as several processes need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from taskrecipe.recipe import IGNORED, Batch

if TYPE_CHECKING:
    import torch

CHUNK, LEAST = 2**24, 64
"""Logits that are computed at a time, and the positions that they are of at least."""


@dataclass
class TokenLosses:
    """The losses of a batch's labels."""

    total: torch.Tensor
    """The sum of the losses, with label smoothing: what is trained."""
    nll: torch.Tensor
    """The negative log likelihood of each label, without smoothing and without gradient; 0 where it is ignored."""
    correct: torch.Tensor | None
    """Whether each label is the likeliest token; None where that was not asked for."""


@dataclass(frozen=True)
class Projection:
    """The last layer of a language model, and what the model does to its logits."""

    head: torch.nn.Linear | None = None
    """None: hidden states are the logits already."""
    scale: float = 1.0
    cap: float | None = None
    """Logits are pressed into this range by a tangent."""
    is_tested: bool = True
    """Whether it is known to give the model's logits. If the model had no weights yet, that is tested at first use."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of some hidden states, in at least single precision."""
        import torch

        linear = torch.nn.functional.linear  # the layer itself has a hook now
        made = hidden if self.head is None else linear(hidden, self.head.weight, self.head.bias)
        exact = made.to(torch.promote_types(made.dtype, torch.float32))
        return self.change(exact)

    def change(self, logits: torch.Tensor) -> torch.Tensor:
        """Return what the model makes of the layer's logits."""
        scaled = logits * self.scale if self.scale != 1.0 else logits
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def chunks(self, count: int, width: int) -> Iterator[slice]:
        """Yield the chunks of `count` positions, for a vocabulary of `width` tokens."""
        size = max(LEAST, CHUNK // width) if self.head is not None else max(count, 1)
        yield from (slice(start, min(start + size, count)) for start in range(0, count, size))

    @property
    def width(self) -> int:
        """The size of the vocabulary; 1 if logits are given."""
        return self.head.out_features if self.head is not None else 1


_WHOLE = ContextVar("whole_outputs", default=False)

PLAIN = Projection()
"""For models whose logits can only be had from the model itself."""


def find_projection(model: Any) -> Projection:
    """Return how the model makes logits. Where that can't be reproduced exactly enough, return `PLAIN`."""
    import torch

    head = getattr(model, "get_output_embeddings", lambda: None)()
    if type(head) is not torch.nn.Linear:
        return PLAIN
    config = model.config.get_text_config()
    found = Projection(
        head,
        scale=getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0),
        cap=getattr(config, "final_logit_softcapping", None),
    )
    if head.weight.device.type == "meta":
        return replace(found, is_tested=False)
    return found if _reproduces_logits(model, found) else PLAIN


_TESTED: WeakKeyDictionary[Any, Projection] = WeakKeyDictionary()
"""What was found out about models that had no weights when they were made."""


def _test_projection(model: Any, projection: Projection) -> Projection:
    """Return the projection if it gives the model's logits; else `PLAIN`. It is tried once."""
    if model not in _TESTED:
        tested = replace(projection, is_tested=True)
        _TESTED[model] = tested if _reproduces_logits(model, tested) else PLAIN
    return _TESTED[model]


def _reproduces_logits(model: Any, projection: Projection) -> bool:
    import torch

    size = min(16, model.config.get_text_config().vocab_size)
    inputs = {"input_ids": torch.arange(size, device=model.device)[None]}
    training = model.training
    try:
        with torch.no_grad():
            expected = model.eval()(**inputs).logits
            found = run_model(model, inputs, projection, Projection.logits)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):  # a model that works another way
        return False
    finally:
        model.train(training)
    return found.shape == expected.shape and torch.allclose(found, expected.to(found.dtype), rtol=1e-4, atol=1e-4)


Finish = Callable[[Projection, "torch.Tensor"], Any]
"""Makes what is needed of the hidden states before the last layer, by that layer."""


def run_model(model: torch.nn.Module, inputs: Mapping[str, Any], projection: Projection, finish: Finish) -> Any:
    """Run the model, and return what `finish` makes of the hidden states before its last layer."""
    from taskrecipe.training.sharding import unwrap_model

    if _WHOLE.get():
        return model(**inputs)
    inner: Any = unwrap_model(model)
    if projection.head is not None and any(hasattr(weight, "ds_tensor") for weight in projection.head.parameters()):
        projection = PLAIN  # DeepSpeed gathers the layer's weights only while the layer itself computes
    if not projection.is_tested:
        projection = _test_projection(inner, projection)
    taken: list[torch.Tensor] = []
    if projection.head is not None and inner.get_output_embeddings() is not projection.head:
        projection = PLAIN  # a technique has put another layer in its place

    def take_input(_: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        taken.append(given[0])
        return (given[0][..., :0, :],)  # no position is left to project

    def finish_output(_: Any, __: Any, outputs: Any) -> Any:
        return finish(projection, taken[0] if taken else outputs.logits)

    with ExitStack() as hooks:
        if projection.head is not None:
            hooks.enter_context(projection.head.register_forward_pre_hook(take_input))
        # Before other hooks, such as the one that frees the weights of a sharded model.
        hooks.enter_context(inner.register_forward_hook(finish_output, prepend=True))
        return model(**inputs)


@contextmanager
def whole_outputs() -> Iterator[None]:
    """Let `run_model` return the model's own outputs, with all logits, such as to compare or to export them."""
    before = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(before)


def next_tokens(batch: Batch) -> torch.Tensor:
    """Return the label of each position of a causal model: the token after it."""
    from torch.nn.functional import pad

    # Labels are moved instead of hidden states, which would have to be copied for it.
    return pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)


def compute_losses(
    projection: Projection, hidden: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0, *, correct: bool
) -> TokenLosses:
    """Return the losses of all labels that are not ignored, and if `correct` whether each is the likeliest token."""
    import torch

    predicted = labels != IGNORED
    chosen, targets = hidden[predicted], labels[predicted]
    training, right = torch.is_grad_enabled(), None
    with torch.no_grad():
        if correct or not training:
            total, nll, right = _measure_losses(projection, chosen, targets, smoothing)
    if training:
        total, nll = _sum_losses(projection, chosen, targets, smoothing)
    return TokenLosses(total, _spread(nll, predicted), None if right is None else _spread(right, predicted))


def compute_nll(projection: Projection, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the negative log likelihood of each label, with gradients; 0 where it is ignored.

    Unlike the sum, gradients of single labels aren't known before the backward pass, so there logits are computed
    again.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    predicted = labels != IGNORED
    chosen, targets = hidden[predicted], labels[predicted]

    def measure(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(projection.logits(states), wanted, reduction="none")

    parts = [
        checkpoint(measure, chosen[part], targets[part], use_reentrant=False)
        for part in projection.chunks(len(targets), projection.width)
    ]
    return _spread(torch.cat([hidden.new_zeros(0), *parts]), predicted)


def find_likeliest(projection: Projection, hidden: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` likeliest tokens for each hidden state, and their probabilities."""
    import torch

    found = [
        torch.softmax(logits, -1).topk(min(count, logits.shape[-1]))
        for part in projection.chunks(len(hidden), projection.width)
        for logits in [projection.logits(hidden[part])]
    ]
    if not found:
        return hidden.new_zeros(0, count, dtype=torch.int32), hidden.new_zeros(0, count)
    return torch.cat([one.indices for one in found]).int(), torch.cat([one.values for one in found])


def _spread(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the shape of `chosen` with the values there, and 0 elsewhere."""
    return values.new_zeros(chosen.shape).masked_scatter(chosen, values)


def _measure_losses(
    projection: Projection, hidden: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    losses, total, right = [], hidden.new_zeros((), dtype=torch.float64), []
    for part in projection.chunks(len(targets), projection.width):
        scores = projection.logits(hidden[part]).log_softmax(-1)
        losses.append(-scores.gather(-1, targets[part, None])[:, 0])
        total = total + (1 - smoothing) * losses[-1].sum() - smoothing * scores.mean(-1).sum()
        right.append(scores.argmax(-1) == targets[part])
    if not losses:
        return total.to(hidden.dtype), hidden.new_zeros(0), hidden.new_zeros(0, dtype=torch.bool)
    return total.to(losses[0].dtype), torch.cat(losses), torch.cat(right)


def _sum_losses(
    projection: Projection, hidden: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the losses with its gradient, and each negative log likelihood without one."""
    import torch

    head = projection.head
    autocast = torch.is_autocast_enabled(hidden.device.type)
    half = torch.get_autocast_dtype(hidden.device.type) if autocast else hidden.dtype
    # Gradients below the range of float16 are saved by scaling the loss, which is not known here yet.
    if head is None or half == torch.float16 or not len(targets):
        logits = projection.logits(hidden)
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
        with torch.no_grad():
            nll = torch.nn.functional.cross_entropy(logits, targets, reduction="none") if smoothing else losses
        return losses.sum(), nll.detach()
    from taskrecipe.text.fused_loss import FusedLoss

    with torch.autocast(hidden.device.type, enabled=False):
        total, nll = FusedLoss.apply(hidden.to(half), head.weight, head.bias, targets, projection, smoothing)  # type: ignore[no-untyped-call]
    return total, nll
