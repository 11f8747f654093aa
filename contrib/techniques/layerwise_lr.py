"""Layer-wise learning rates: the lower a layer, the less it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field
from typing_extensions import override

from taskrecipe import Effect, Group, Recipe, Technique

if TYPE_CHECKING:
    import torch

    from taskrecipe import ModelSource


class LayerwiseLr(Technique):
    """A learning rate that decays from the top of the model to its embeddings.

    What is above the last layer, such as the head, has the full learning rate. The last layer has `decay` times that,
    the layer below it `decay` times as much again, and the embeddings have the lowest.
    """

    decay: float = Field(gt=0.0, le=1.0, description="Learning rate of a layer, as a share of the layer above it.")

    @override
    def build(self, recipe: Recipe, source: ModelSource) -> Effect:
        return ScaledGroups(self.decay)


class ScaledGroups(Effect):
    """Splits the optimizer's groups by layer, each with its share of the learning rate."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    @override
    def change_groups(self, module: torch.nn.Module, groups: list[Group]) -> list[Group]:
        from taskrecipe.contrib.techniques.layers import find_places

        places = find_places(module)
        distances = {id(parameter): places[name].distance for name, parameter in module.named_parameters()}
        return [part for group in groups for part in self._split_group(group, distances)]

    def _split_group(self, group: Group, distances: dict[int, int]) -> list[Group]:
        parts: dict[int, Group] = {}
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            distance = distances[id(parameter)]
            scale = group.get("lr_scale", 1.0) * self.decay**distance
            part = parts.setdefault(distance, {**group, "params": [], "param_names": [], "lr_scale": scale})
            part["params"].append(parameter)
            part["param_names"].append(name)
        return list(parts.values())
