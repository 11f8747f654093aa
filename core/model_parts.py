"""The parts of a loaded model: which parameters are new, which belong to heads, and which linear layers are the body's.

Adapters and quantized weights are for what is pretrained. What is new must be trained whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_NEW = "_taskrecipe_new_weights"
"""The attribute of a model of transformers that holds the names of its new weights."""


def mark_new_weights(model: Any, names: Iterable[str]) -> None:
    """Remember which weights of a model did not come from a file."""
    setattr(model, _NEW, frozenset(names))


def find_new_weights(module: torch.nn.Module) -> set[str]:
    """Return the names of the parameters that start at random: what was not in the file, and what is no part of it."""
    models, found = list(_pretrained_models(module)), set()
    inside = {id(parameter) for _, model in models for parameter in model.parameters()}
    for prefix, model in models:
        found |= {f"{prefix}{name}" for name in getattr(model, _NEW, ())}
    return {name for name, parameter in module.named_parameters() if name in found or id(parameter) not in inside}


def find_heads(module: torch.nn.Module) -> set[str]:
    """Return the names of the parameters of heads: what is used outside of a base model, but for tables of tokens."""
    bodies = [f"{prefix}{_base_path(model)}" for prefix, model in _pretrained_models(module)]
    # Some models have their heads inside the base model, too. Then these are found by the other name.
    heads = {
        id(parameter)
        for path, part in module.named_modules(remove_duplicate=False)
        if not any(f"{path}.".startswith(body) for body in bodies)
        for parameter in part.parameters(recurse=False)
    }
    heads -= {id(table.weight) for table in _output_embeddings(module)}
    return {name for name, parameter in module.named_parameters() if id(parameter) in heads}


def find_linear_layers(module: torch.nn.Module) -> list[str]:
    """Return the names of the body's linear layers that have pretrained weights, in the order of the model.

    Layers that share their weight with another layer are left out: what is added to one would change the other.
    """
    import torch
    from transformers.pytorch_utils import Conv1D  # what GPT-2 calls its linear layers

    left_out = find_new_weights(module) | find_heads(module)
    owners = Counter(id(parameter) for part in module.modules() for parameter in part.parameters(recurse=False))
    vocabularies = {id(table.weight) for table in _output_embeddings(module)}
    # torch's own attention never calls its linear layer: it reads the weight.
    unused = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
    return [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, (torch.nn.Linear, Conv1D))
        and not isinstance(layer, unused)
        and f"{name}.weight" not in left_out
        and owners[id(layer.weight)] == 1
        and id(layer.weight) not in vocabularies
    ]


def _base_path(model: Any) -> str:
    """Return what the names of a base model begin with in a model; nothing if it is its own base model."""
    return "" if model.base_model is model else f"{model.base_model_prefix}."


def _pretrained_models(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the outermost models of transformers in a module, and what their names begin with there."""
    from transformers import PreTrainedModel

    found: list[str] = []
    for name, part in module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(part, PreTrainedModel) and not any(prefix.startswith(outer) for outer in found):
            found.append(prefix)
            yield prefix, part


def _output_embeddings(module: torch.nn.Module) -> list[Any]:
    """Return the layers that turn hidden states into logits over a vocabulary."""
    found = []
    for _, model in _pretrained_models(module):
        with suppress(NotImplementedError):  # a model that embeds no tokens
            found.append(model.get_output_embeddings())
    return [layer for layer in found if layer is not None]
