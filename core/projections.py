"""Optimizers that project gradients (GaLore, APOLLO): what is projected, and what of it a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Group = dict[str, Any]


def project(groups: list[Group], options: dict[str, Any]) -> list[Group]:
    """Give the options of projection to those matrices of linear layers that are larger than the rank."""
    return [part for group in groups for part in _split(group, options)]


def _split(group: Group, options: dict[str, Any]) -> Iterator[Group]:
    common = {key: value for key, value in group.items() if key != "linear"}
    members = list(zip(group["params"], group["param_names"], strict=True))
    large = ["linear" in group and min(parameter.shape) > options["rank"] for parameter, _ in members]
    for wanted, extra in ((True, options), (False, {})):
        part = [member for member, is_large in zip(members, large, strict=True) if is_large == wanted]
        if part:
            params, names = (list(column) for column in zip(*part, strict=True))
            yield {**common, "params": params, "param_names": names, **extra}


def keep_projectors(optimizer: torch.optim.Optimizer, *kinds: type) -> torch.optim.Optimizer:
    """Let checkpoints keep the projectors, which are objects of `kinds` in the optimizer's state."""
    from taskrecipe.core.checkpoints.state import keepable

    for kind in kinds:
        keepable(kind)
    optimizer.register_load_state_dict_post_hook(_move_projectors)
    return optimizer


def _move_projectors(optimizer: torch.optim.Optimizer) -> None:
    """Bring loaded projectors to their parameters' devices; torch does that for bare tensors only."""
    for parameter, state in optimizer.state.items():
        projector = state.get("projector")
        if projector is not None and projector.ortho_matrix is not None:
            matrix = projector.ortho_matrix
            both = [part.to(parameter.device) for part in (matrix if isinstance(matrix, list) else [matrix])]
            projector.ortho_matrix = both if isinstance(matrix, list) else both[0]
