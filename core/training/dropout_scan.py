"""Finding what in a model draws random numbers that can't follow the rows, when the model is made."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

LAYOUTS = {
    "mask2former": "rows are the second dimension of its decoder",
    "oneformer": "rows are the second dimension of its decoder",
    "xlnet": "its rows are the second dimension",
    "deberta": "it drops parts of position embeddings that all rows share",
    "deberta-v2": "it drops parts of position embeddings that all rows share",
}
"""Architectures whose dropouts don't all have rows in the first dimension, and why."""

OTHER_DRAWS = {
    "bernoulli",
    "exponential_",
    "gumbel_softmax",
    "multinomial",
    "normal",
    "randint",
    "randn",
    "randn_like",
    "randperm",
}
"""Names of random functions in a model's code that `RowDropout` can't key."""

RANDOM_MODULES = {"random", "numpy.random"}
"""Modules that draw where torch doesn't see it."""

NOT_TRAINING = ("__init__", "_init_weights", "reset_parameters", "dummy_inputs")
"""Methods that a forward pass in training doesn't call; those that generate are left out too."""


def warn_of_other_draws(module: torch.nn.Module) -> None:
    """Warn of everything in the model that draws by another rule than by row."""
    found = sorted(set(find_other_draws(module)))
    if found:
        warnings.warn(
            "[train].dropout = 'by_row': these draws of the model can't follow the rows, so they depend on "
            f"[train].accumulate, processes and padding: {'; '.join(found)}",
            stacklevel=2,
        )


def find_other_draws(module: torch.nn.Module) -> Iterator[str]:
    """Yield what draws by another rule: layers, layouts, and functions named in the code of the model's classes."""
    kinds = set()
    for part in module.modules():
        kinds.add(type(part))
        yield from _find_in_layer(part)
        kind = getattr(getattr(part, "config", None), "model_type", None)
        if kind in LAYOUTS and any(map(_drops, part.modules())):
            yield f"{kind} ({LAYOUTS[kind]})"
    for kind in kinds:
        for name in sorted(_find_in_code(kind)):
            yield f"{kind.__name__} ({name})"


def _drops(layer: torch.nn.Module) -> bool:
    """Whether a layer has a dropout rate over 0, by the names that models give it."""
    named = isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.p > 0
    return named or any("drop" in name and isinstance(rate, float) and rate > 0 for name, rate in vars(layer).items())


def _find_in_layer(layer: torch.nn.Module) -> Iterator[str]:
    rate = getattr(layer, "dropout", 0.0)
    if isinstance(layer, torch.nn.MultiheadAttention | torch.nn.RNNBase) and isinstance(rate, float) and rate:
        yield f"{type(layer).__name__} (dropout {rate:g})"
    if isinstance(layer, torch.nn.AlphaDropout | torch.nn.FeatureAlphaDropout) and layer.p:
        yield f"{type(layer).__name__} (p {layer.p:g})"


def _find_in_code(kind: type) -> set[str]:
    """Return the random functions that a class's methods name, or functions of its module that they call."""
    found = set()
    for name, method in vars(kind).items():
        function = inspect.unwrap(method) if callable(method) else method
        if isinstance(function, FunctionType) and name not in NOT_TRAINING and "generate" not in name:
            found |= _find_in_function(function, set())
    return found


def _find_in_function(function: FunctionType, seen: set[FunctionType]) -> set[str]:
    if function in seen or function.__module__.split(".")[0] == "torch":
        return set()
    seen.add(function)
    names = set(_names_in(function.__code__))
    found = {name for name in names & OTHER_DRAWS if not _is_own(function, name)}
    for name in names:
        value = function.__globals__.get(name)
        if _draws_outside_torch(value, names):
            found.add(f"{name}.random" if name != "random" else name)
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            found |= _find_in_function(value, seen)
    return found


def _draws_outside_torch(value: Any, names: set[str]) -> bool:
    if not isinstance(value, ModuleType):
        return False
    return value.__name__ in RANDOM_MODULES or (value.__name__ == "numpy" and "random" in names)


def _is_own(function: FunctionType, name: str) -> bool:
    """Whether the name is a function of the model's own code, which is looked into itself."""
    return isinstance(function.__globals__.get(name), FunctionType)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
