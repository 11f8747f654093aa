"""Weights that an update doesn't use, where several processes average their gradients.

torch's wrapper waits for the gradient of every weight. It can look for those that get none, in every update and at a
cost; so it does only where a recipe, a technique or the spec says that there are some. Where nobody has said so, an
update in which a weight gets no gradient is refused before it is taken: the processes would part from one another.

Annotations are not strings in this module (no `from __future__ import annotations`): torch compares some of them.
"""

from collections.abc import Sequence

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from taskrecipe.errors import UsageError
from taskrecipe.plugins.kinds import Effect
from taskrecipe.recipe import Recipe


def leaves_weights_unused(recipe: Recipe, effects: Sequence[Effect]) -> bool:
    """Whether updates may leave weights without a gradient."""
    said = [recipe.uses_all_weights, *(effect.uses_all_weights for effect in effects)]
    return recipe.spec.launch.unused_weights or not all(said)


def holds_changing_buffers(module: torch.nn.Module) -> bool:
    """Whether a module keeps numbers besides its weights, such as statistics, which all processes must share."""
    weights = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    kept = module.state_dict(keep_vars=True).items()
    return any(tensor.is_floating_point() for name, tensor in kept if name not in weights)


class ExchangeWatch:
    """Watches whether all gradients of an update are exchanged."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = model
        self.is_complete = False
        model.register_comm_hook(self, _exchange)

    def require_all(self, number: int) -> None:
        """Raise if a weight got no gradient in the backward pass of update `number`."""
        if not self.is_complete:
            raise UsageError(
                f"not all weights got a gradient in update {number + 1}{self._name_unused()}, and several processes "
                "wait for each. If the model leaves weights unused: [launch].unused_weights = true. A recipe that does "
                "so by itself says uses_all_weights = False"
            )
        self.is_complete = False

    def _name_unused(self) -> str:
        weights = self.model.module.named_parameters()
        unused = [name for name, weight in weights if weight.requires_grad and weight.grad is None]
        shown = ", ".join(name.removeprefix("_orig_mod.") for name in unused[:4])
        # Else they have one of an earlier micro-batch; gradients are exchanged in the last.
        return f": {shown}{' …' if len(unused) > 4 else ''} got none" if unused else ": some got none in its last part"


def _exchange(
    watch: ExchangeWatch,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]  # public, but not in its __all__
) -> torch.futures.Future[torch.Tensor]:
    """Average a part of the gradients. Parts come in the same order always, so the last one completes them."""
    watch.is_complete = watch.is_complete or bucket.is_last()
    return allreduce_hook(None, bucket)  # type: ignore[arg-type]
