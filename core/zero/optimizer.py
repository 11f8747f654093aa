"""The optimizer that DeepSpeed drives: its state by parameter name, as checkpoints hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from typing_extensions import override

from taskrecipe.checkpoints.nested_state import unpack_state
from taskrecipe.checkpoints.stored_tensors import StoredTensors
from taskrecipe.errors import UsageError
from taskrecipe.sharding.state_files import PARAMETERS
from taskrecipe.training.sharding import local_tensor
from taskrecipe.zero.places import Place, find_places

COUNT = "step"
"""The one value of a parameter's state that is not laid out like the parameter."""


class EngineOptimizer:
    """DeepSpeed's engine in the place of the optimizer that it drives."""

    def __init__(self, engine: Any, members: list[list[str]]) -> None:
        self.engine = engine
        self.members = members
        """The names of the parameters of each group."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer. Its parameters are the flat memory of this process."""
        inner: torch.optim.Optimizer = self.engine.optimizer.optimizer
        return inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the torch optimizer."""
        return self.optimizer.param_groups

    def step(self) -> None:
        """Change the weights, and drop the gradients."""
        self.engine.step()

    def zero_grad(self) -> None:
        """Do nothing: a step has dropped the gradients."""


class DividedOptimizer:
    """The state of an optimizer that sees only flat memory, by the names of the parameters in it."""

    def __init__(self, optimizer: EngineOptimizer) -> None:
        self.optimizer, self.engine = optimizer.optimizer, optimizer.engine
        self.members = optimizer.members
        self.places = find_places(self.engine)

    def state(self) -> dict[str, Any]:
        """Return the state of each parameter by its name, in the form that every engine writes."""
        found = {name: self._state_of(place) for name, place in self.places.items()}
        return {
            "parameters": {name: state for name, state in found.items() if state},
            "groups": [[names, {}] for names in self.members],
            "extra": {},
        }

    def _state_of(self, place: Place) -> dict[str, Any]:
        state = self.optimizer.state.get(place.flat, {})
        return {key: self._part(key, value, place) for key, value in state.items()}

    @staticmethod
    def _part(key: str, value: Any, place: Place) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # Each parameter gets a count of its own: other engines count each by itself.
        return value.clone() if key == COUNT else place.take_shard(value)

    def restore_parts(self, stored: StoredTensors, skeleton: Any) -> None:
        """Restore the parts of the state that this process holds."""
        state = unpack_state(_StoredParts(stored, self.places), skeleton)["parameters"]
        counts: dict[int, tuple[str, float]] = {}
        for name, place in self.places.items():
            for key, value in state.get(name, {}).items():
                if key == COUNT:
                    self._require_same_count(counts, name, place, float(value))
                self._restore_value(place, key, value)

    def _restore_value(self, place: Place, key: str, value: Any) -> None:
        held = self.optimizer.state[place.flat]
        if not isinstance(value, torch.Tensor):
            held[key] = value
        elif key != COUNT:
            place.take(held.setdefault(key, torch.zeros_like(place.flat))).copy_(value)
        elif key in held:
            held[key].copy_(value)
        else:
            counts_on_device = any(
                group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups
            )
            held[key] = value.to(place.flat.device, copy=True) if counts_on_device else value.clone()

    @staticmethod
    def _require_same_count(counts: dict[int, tuple[str, float]], name: str, place: Place, count: float) -> None:
        other, expected = counts.setdefault(id(place.flat), (name, count))
        if count != expected:
            raise UsageError(
                f"DeepSpeed counts the updates of all parameters together, but in this checkpoint {other!r} has taken "
                f'{expected:g} and {name!r} {count:g}; resume with [launch].engine = "torch"'
            )

    @torch.no_grad()
    def copy_weights(self) -> None:
        """Copy the module's weights into the flat memory that the optimizer changes."""
        for name, parameter in self.engine.module.named_parameters():
            if name in self.places:
                place = self.places[name]
                is_whole = not hasattr(parameter, "ds_tensor")
                first = place.start if is_whole else 0
                own = local_tensor(parameter).detach().reshape(-1).narrow(0, first, place.count)
                place.take(place.flat).copy_(own)


class _StoredParts(Mapping[str, torch.Tensor]):
    """The tensors of a stored state: the parts that this process holds, and whole counts."""

    def __init__(self, stored: StoredTensors, places: Mapping[str, Place]) -> None:
        self.stored, self.places = stored, places

    @override
    def __getitem__(self, name: str) -> torch.Tensor:
        parameter, _, key = name.removeprefix(PARAMETERS).rpartition("/")
        if key == COUNT or parameter not in self.places:
            return self.stored.read(name)
        place = self.places[parameter]
        return self.stored.read_stretch(name, place.start, place.start + place.count)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.stored.names)

    @override
    def __len__(self) -> int:
        return len(self.stored.names)
