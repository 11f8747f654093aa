"""Optimizers that project gradients (GaLore, APOLLO): which matrices they project, and what checkpoints keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Group = dict[str, Any]


def project_groups(groups: list[Group], options: dict[str, Any]) -> list[Group]:
    """Set the options of projection for the matrices of linear layers that are larger than the rank."""
    return [part for group in groups for part in _split_group(group, options)]


def _split_group(group: Group, options: dict[str, Any]) -> Iterator[Group]:
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
    from taskrecipe.checkpoints.nested_state import keepable

    for kind in kinds:
        keepable(kind)
    optimizer.register_load_state_dict_post_hook(_adjust_projectors)
    return optimizer


def _adjust_projectors(optimizer: torch.optim.Optimizer) -> None:
    """Set the groups' settings in loaded projectors, and move them to the devices of their parameters.

    Torch moves only tensors, and a projector keeps the settings that it was made with.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            projector = optimizer.state[parameter].get("projector") if parameter in optimizer.state else None
            if projector is not None:
                projector.update_proj_gap, projector.scale = group["update_proj_gap"], group["scale"]
                projector.ortho_matrix = _move_matrix(projector.ortho_matrix, parameter.device)


def _move_matrix(matrix: Any, device: torch.device) -> Any:
    """Move a projector's matrix, which is a list of two for projections on both sides, and None at first."""
    if isinstance(matrix, list):
        return [part.to(device) for part in matrix]
    return matrix if matrix is None else matrix.to(device)
