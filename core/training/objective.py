"""The loss of a training micro-batch: the recipe's own, changed by each technique in turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from taskrecipe.optional import WeighsTerms
from taskrecipe.plugins.kinds import Compute, Computed, Effect
from taskrecipe.recipe import Batch, Recipe

if TYPE_CHECKING:
    import torch

    from taskrecipe.training.dropout import RowDropout


class Objective:
    """What training minimizes. The last technique of the spec is the outermost: it calls those before it."""

    def __init__(self, recipe: Recipe, effects: Sequence[Effect] = (), dropout: RowDropout | None = None) -> None:
        self.recipe, self.effects, self.dropout = recipe, list(effects), dropout
        self._compute: Compute = self._recipe_loss
        for effect in self.effects:
            self._compute = partial(effect.loss, self._compute)

    def counts(self, batch: Batch) -> dict[str, float]:
        """Return how many items each loss term of a micro-batch is a mean over."""
        return reduce(lambda counts, effect: effect.loss_counts(counts), self.effects, self.recipe.loss_counts(batch))

    def compute(self, model: torch.nn.Module, batch: Batch) -> Computed:
        """Run the model on a micro-batch and compute its loss terms."""
        return self._compute(model, batch)

    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the model on a micro-batch, with dropout by row if the spec says so."""
        if self.dropout is None:
            return self.recipe.forward(model, batch)
        return self.dropout.run(lambda: self.recipe.forward(model, batch))

    def term_weights(self, counts: dict[str, float]) -> dict[str, float]:
        """Return what each term is multiplied by, where the recipe weighs terms. `counts` are the whole update's."""
        return self.recipe.term_weights(counts) if isinstance(self.recipe, WeighsTerms) else {}

    def term_names(self, counts: dict[str, float]) -> list[str]:
        """Return the names of the loss terms. `counts` may hold more, where the recipe weighs terms by them."""
        return sorted(self.term_weights(counts) or counts)

    def _recipe_loss(self, model: torch.nn.Module, batch: Batch) -> Computed:
        outputs = self.forward(model, batch)
        return Computed(outputs, self.recipe.loss(outputs, batch, training=True))
