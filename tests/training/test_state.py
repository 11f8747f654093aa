"""What an optimizer keeps over a resume goes by parameter name; what the spec says is not kept."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from taskrecipe.plugins.optimizers import parameter_groups
from taskrecipe.plugins.registry import installed
from taskrecipe.training.state import OptimizerGroups

COUNTERS = {"k", "weight_sum", "lr_max", "scheduled_lr", "train_mode"}
"""What schedule-free keeps in its groups although no one sets it."""

CHANGES: dict[str, dict[str, Any]] = {
    "adamw": {"beta1": 0.5, "beta2": 0.5, "eps": 0.5, "weight_decay": 0.5},
    "sgd": {"momentum": 0.5, "nesterov": True, "weight_decay": 0.5},
    "rmsprop": {"alpha": 0.5, "eps": 0.5, "weight_decay": 0.5},
    "lion": {"beta1": 0.1, "beta2": 0.1, "weight_decay": 0.5},
    "schedule_free": {"beta2": 0.5, "eps": 0.5, "warmup": 9, "r": 3.0, "weight_lr_power": 0.5, "weight_decay": 0.5},
}


class Trained:
    """Linear layers of one shape, so that only their names say which is which, and an optimizer."""

    def __init__(self, layers: str, optimizer: str, learning_rate: float = 0.01, **options: Any) -> None:
        torch.manual_seed(0)
        self.module = nn.ModuleDict({name: nn.Linear(4, 4) for name in layers})
        table = installed().optimizer(optimizer)(name=optimizer, **options)
        self.optimizer = table.build(parameter_groups(self.module, table), learning_rate)
        self.groups = OptimizerGroups(self.optimizer, self.module)

    def update(self, first: int, last: int) -> None:
        """Take updates whose gradients depend on the names of the parameters only."""
        for number in range(first, last):
            for name, parameter in self.module.named_parameters():
                random = torch.Generator().manual_seed(1000 * number + sum(map(ord, name)))
                parameter.grad = torch.randn(parameter.shape, generator=random)
            self.optimizer.step()

    def settings(self) -> list[dict[str, Any]]:
        left_out = ("params", "param_names")
        return [{k: v for k, v in group.items() if k not in left_out} for group in self.optimizer.param_groups]


@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free"])
@pytest.mark.parametrize("layers", ["abc", "cba", "bca"])
def test_state_finds_its_parameters_in_any_order(optimizer: str, layers: str) -> None:
    saved, resumed = Trained("abc", optimizer), Trained(layers, optimizer)
    saved.update(0, 3)
    resumed.module.load_state_dict(saved.module.state_dict())
    resumed.groups.restore(copy.deepcopy(saved.groups.state()))
    for trained in (saved, resumed):
        trained.update(3, 6)
    expected = saved.module.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.module.state_dict().items())


@pytest.mark.parametrize("optimizer", CHANGES)
def test_every_setting_is_the_one_of_the_spec(optimizer: str) -> None:
    saved, resumed = Trained("ab", optimizer), Trained("ab", optimizer, 0.5, **CHANGES[optimizer])
    wanted = resumed.settings()
    saved.update(0, 3)
    assert all(old != new for old, new in zip(saved.settings(), wanted, strict=True))
    resumed.groups.restore(copy.deepcopy(saved.groups.state()))
    for group, new in zip(resumed.settings(), wanted, strict=True):
        kept = COUNTERS if optimizer == "schedule_free" else set()
        assert {k: v for k, v in group.items() if k not in kept} == {k: v for k, v in new.items() if k not in kept}


def test_the_counters_of_schedule_free_are_restored() -> None:
    saved, resumed = (Trained("ab", "schedule_free") for _ in range(2))
    saved.update(0, 5)
    resumed.groups.restore(copy.deepcopy(saved.groups.state()))
    for old, new in zip(saved.settings(), resumed.settings(), strict=True):
        assert new["k"] == 5
        assert {key: new[key] for key in COUNTERS} == {key: old[key] for key in COUNTERS}


def test_a_parameter_that_is_new_starts_without_state() -> None:
    saved, resumed = Trained("ab", "adamw"), Trained("abc", "adamw")
    saved.update(0, 3)
    resumed.groups.restore(copy.deepcopy(saved.groups.state()))
    with_state = {resumed.groups.names[id(parameter)] for parameter in resumed.optimizer.state}
    assert with_state == {"a.weight", "a.bias", "b.weight", "b.bias"}
