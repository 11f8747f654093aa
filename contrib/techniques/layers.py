"""Where each parameter is in a model: in its embeddings, in one of its layers, or above them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskrecipe import UsageError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Stack:
    """Layers of one kind that follow each other, and the name of their list in the model."""

    name: str
    layers: list[torch.nn.Module]


@dataclass(frozen=True)
class Place:
    """The place of a parameter: 0 for embeddings, then 1 for the first layer; None above the last layer."""

    depth: int | None
    distance: int
    """How far it is below the top: 0 above the last layer, 1 for the last layer, most for embeddings."""


def find_places(model: torch.nn.Module) -> dict[str, Place]:
    """Return the place of every parameter by its name. A model with several stacks has each counted separately."""
    stacks = find_stacks(model)
    top = max(len(stack.layers) for stack in stacks) + 1
    in_layers = {
        id(parameter): Place(number, len(stack.layers) + 1 - number)
        for stack in stacks
        for number, layer in enumerate(stack.layers, 1)
        for parameter in layer.parameters()
    }
    seen: set[str] = set()  # the stacks that the parameters so far belong to or come after
    places: dict[str, Place] = {}
    for name, parameter in model.named_parameters():
        seen.update(stack.name for stack in stacks if name.startswith(f"{stack.name}."))
        below = _is_embedding(name) or _closest_stack(name, stacks).name not in seen
        places[name] = in_layers.get(id(parameter), Place(0, top) if below else Place(None, 0))
    return places


def find_stacks(model: torch.nn.Module) -> list[Stack]:
    """Return the outermost lists of layers: several modules of one class, each with parts, none a whole model."""
    stacks: list[Stack] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{stack.name}.") for stack in stacks)
        if not inside and _is_stack(module):
            stacks.append(Stack(name, list(module.children())))
    if not stacks:
        raise UsageError(f"no layers are recognized in a {type(model).__name__}: it has no list of equal modules")
    return stacks


def _is_stack(module: torch.nn.Module) -> bool:
    from torch.nn import ModuleList

    layers = list(module.children()) if isinstance(module, ModuleList) else []
    whole_models = any(hasattr(layer, "base_model") for layer in layers)
    with_parts = all(any(layer.children()) for layer in layers)
    return len({type(layer) for layer in layers}) == 1 and with_parts and not whole_models


def _is_embedding(name: str) -> bool:
    return "embed" in name


def _closest_stack(name: str, stacks: list[Stack]) -> Stack:
    """Return the stack whose name begins most like the name of the parameter."""

    def shared(stack: Stack) -> int:
        pairs = zip(name.split("."), stack.name.split("."), strict=False)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), len(stack.name))

    return max(stacks, key=shared)
