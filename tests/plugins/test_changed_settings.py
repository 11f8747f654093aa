"""A setting that an optimizer doesn't list in `shapes_state` takes effect when a run is resumed with another value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from taskrecipe.plugins.optimizers import parameter_groups
from taskrecipe.plugins.registry import installed
from taskrecipe.training.state import OptimizerGroups

PROJECTED = {"rank": 4, "update_proj_gap": 5}
BASE: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "adafactor": {"scale_parameter": True},
    "galore": PROJECTED,
    "apollo": PROJECTED,
}
ADAM = {"beta1": 0.5, "beta2": 0.5, "eps": 0.5}
CHANGES: dict[str, dict[str, Any]] = {
    "adamw": ADAM,
    "sgd": {"momentum": 0.5, "nesterov": True},
    "adagrad": {"eps": 0.5},
    "rmsprop": {"alpha": 0.5, "eps": 0.5},
    "adafactor": {
        "eps": 0.5,
        "eps_scale": 1.0,
        "clip_threshold": 0.01,
        "decay_rate": -0.1,
        "scale_parameter": False,
        "relative_step": True,
    },
    "schedule_free": {"beta2": 0.5, "eps": 0.5, "warmup": 100, "r": 3.0, "weight_lr_power": 0.5},
    "lion": {"beta1": 0.1, "beta2": 0.1},
    "galore": ADAM | {"update_proj_gap": 7, "scale": 0.5},
    "apollo": ADAM | {"update_proj_gap": 7, "scale": 0.5, "scale_type": "tensor"},
}
CASES = [(name, key, value) for name, changes in CHANGES.items() for key, value in changes.items()]
CASES += [(name, "weight_decay", 0.5) for name in CHANGES]


class Training:
    """A small model with its optimizer, trained on one fixed batch."""

    def __init__(self, name: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.inputs, self.targets = torch.randn(16, 24), torch.randn(16, 16)
        self.model = nn.Linear(24, 16)
        table = installed().optimizer(name)(name=name, **BASE.get(name, {}) | options)
        self.optimizer = table.build(parameter_groups(self.model, table), 2e-2)
        self.groups = OptimizerGroups(self.optimizer, self.model)

    def update(self, times: int) -> None:
        for _ in range(times):
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(self.inputs), self.targets).backward()
            self.optimizer.step()

    def weights_after_resume(self, saved: Training) -> torch.Tensor:
        """The weights two updates after taking over what `saved` has."""
        self.model.load_state_dict(saved.model.state_dict())
        self.groups.restore(saved.groups.state())
        self.update(2)
        return self.model.weight.detach()


@pytest.mark.parametrize(("name", "key", "value"), CASES)
def test_it_takes_effect(name: str, key: str, value: Any):
    saved = Training(name)
    saved.update(7)
    unchanged = Training(name).weights_after_resume(saved)
    saved = Training(name)
    saved.update(7)
    changed = Training(name, **{key: value}).weights_after_resume(saved)
    assert not torch.equal(unchanged, changed)


def test_every_setting_is_tried():
    for name, changes in CHANGES.items():
        table = installed().optimizer(name)
        tried = {"name", "weight_decay", "warmup_init", *table.shapes_state, *changes}
        assert tried >= set(table.model_fields), name
