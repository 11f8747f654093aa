"""Freezing: a part of the model keeps its weights, for the whole run or for its first updates."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator
from typing_extensions import override

from taskrecipe import Count, Effect, Recipe, Technique, Text, UsageError

if TYPE_CHECKING:
    import torch

    from taskrecipe import ModelSource


class Freeze(Technique):
    """Parameters that are not trained: those named, the first layers, or all but the head.

    Give exactly one of `names`, `layers` and `all_but_head`. With `until`, they are trained from that update on.
    """

    shapes_state: ClassVar = ("names", "layers", "all_but_head", "until")

    names: list[Text] | None = Field(
        default=None, min_length=1, description='Names of parameters, * for any part of one: ["bert.embeddings.*"].'
    )
    layers: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        default=None, description="How many of the first layers, and the embeddings below them; 0 for these alone."
    )
    all_but_head: bool = Field(default=False, description="Everything that comes from the pretrained base model.")
    until: Count | None = Field(
        default=None, description="The number of updates after which they are trained; by default never."
    )

    @model_validator(mode="after")
    def _one_choice_is_made(self) -> Freeze:
        if [self.names is not None, self.layers is not None, self.all_but_head].count(True) != 1:
            raise ValueError("freeze needs exactly one of 'names', 'layers' and 'all_but_head = true'")
        return self

    @override
    def build(self, recipe: Recipe, source: ModelSource) -> Effect:
        return FrozenParameters(self)


class FrozenParameters(Effect):
    """Keeps parameters out of the optimizer; or in it, without gradients until an update."""

    def __init__(self, options: Freeze) -> None:
        self.options = options
        self.names: set[str] = set()

    @override
    def change_model(self, module: torch.nn.Module) -> torch.nn.Module:
        # What another technique has frozen stays so.
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.names = self._choose_names(module) & trained
        sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
        frozen, until = sum(sizes[name] for name in self.names), self.options.until
        end = f" for the first {until} updates" if until else ""
        warnings.warn(f"freeze: {frozen:,} of {sum(sizes.values()):,} weights are frozen{end}", stacklevel=2)
        if until is None:
            self._set_trained(module, False)
        return module

    @property
    def uses_all_weights(self) -> bool:  # type: ignore[override]  # here it depends on the options
        """Whether what is frozen stays frozen: what is frozen for a while gets no gradient meanwhile."""
        return self.options.until is None

    @override
    def before_update(self, number: int, module: torch.nn.Module) -> None:
        if self.options.until is not None:
            self._set_trained(module, number >= self.options.until)

    def _set_trained(self, module: torch.nn.Module, trained: bool) -> None:
        for name, parameter in module.named_parameters():
            if name in self.names:
                parameter.requires_grad_(trained)

    def _choose_names(self, module: torch.nn.Module) -> set[str]:
        if self.options.names is not None:
            from taskrecipe.contrib.techniques.names import match_names

            known = [name for name, _ in module.named_parameters()]
            matched = (match_names(pattern, known, "freeze: no parameter") for pattern in self.options.names)
            return {name for names in matched for name in names}
        return _base_names(module) if self.options.all_but_head else _layer_names(module, self.options.layers or 0)


def _layer_names(module: torch.nn.Module, count: int) -> set[str]:
    from taskrecipe.contrib.techniques.layers import find_places, find_stacks

    present = min(len(stack.layers) for stack in find_stacks(module))
    if count > present:
        raise UsageError(f"freeze: layers = {count}, but the model has {present} layers")
    places = find_places(module)
    return {name for name, place in places.items() if place.depth is not None and place.depth <= count}


def _base_names(module: torch.nn.Module) -> set[str]:
    """Return the names of what is in a base model, which transformers keeps apart from the heads on it."""
    bases = [(part, getattr(part, "base_model", part)) for part in module.modules()]
    inside = {id(parameter) for part, base in bases if base is not part for parameter in base.parameters()}
    names = {name for name, parameter in module.named_parameters() if id(parameter) in inside}
    if not names:
        raise UsageError(f"freeze: a {type(module).__name__} has no head apart from its base model; use 'names'")
    return names
