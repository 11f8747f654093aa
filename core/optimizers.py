"""The optimizers that come with it, and which weights each of them decays or projects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from taskrecipe.core.errors import UsageError
from taskrecipe.core.extras import require
from taskrecipe.core.plugins import Optimizer
from taskrecipe.core.projections import keep_projectors, project
from taskrecipe.core.spec.table import LARGEST, Count

if TYPE_CHECKING:
    import torch

Groups = list[dict[str, Any]]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Epsilon = Annotated[float, Field(gt=0.0, le=1.0)]

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu", "hpu"})
# Norms of torch and those that models define for themselves: LlamaRMSNorm, FrozenBatchNorm2d, T5LayerNorm.
NORM_CLASS = re.compile(r"Norm([123]d)?$")


def parameter_groups(model: torch.nn.Module, optimizer: Optimizer) -> Groups:
    """Group what is trained by whether weight decay applies, which spares biases, norms and vectors."""
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, parameter, module in _trained(model):
        decays = not _is_spared(name, parameter, module)
        linear = optimizer.splits_linear and _is_linear(module) and parameter.ndim == 2
        new = {"params": [], "param_names": [], "weight_decay": optimizer.weight_decay if decays else 0.0}
        group = groups.setdefault((decays, linear), new | ({"linear": True} if linear else {}))
        group["params"].append(parameter)
        group["param_names"].append(name)
    if not groups:
        raise UsageError("there is nothing to train: every parameter of the model is frozen")
    return list(groups.values())


def _trained(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter, torch.nn.Module]]:
    """Every parameter that is not frozen, once, with its name and the first module that owns it."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter, module


def _is_spared(name: str, parameter: torch.nn.Parameter, module: torch.nn.Module) -> bool:
    is_norm = any(NORM_CLASS.search(kind.__name__) for kind in type(module).__mro__)
    return parameter.ndim < 2 or is_norm or "bias" in name.rpartition(".")[2]


def _is_linear(module: torch.nn.Module) -> bool:
    import torch
    from transformers.pytorch_utils import Conv1D  # what GPT-2 calls its linear layers

    return isinstance(module, (torch.nn.Linear, Conv1D))


class _Adam(Optimizer):
    """What all of Adam's kind have in common."""

    beta1: Beta = Field(default=0.9, description="Decay of the running mean of gradients.")
    beta2: Beta = Field(default=0.999, description="Decay of the running mean of squared gradients.")
    eps: Epsilon = Field(default=1e-8, description="Added to the denominator, so that it is never zero.")

    @property
    def _moments(self) -> dict[str, Any]:
        return {"betas": (self.beta1, self.beta2), "eps": self.eps}


class AdamW(_Adam):
    """Adam with decoupled weight decay, in one fused kernel where device and types allow."""

    amsgrad: bool = Field(default=False, description="Divide by the largest running mean so far.")

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make torch's AdamW."""
        import torch

        fused = all(
            parameter.is_floating_point() and parameter.device.type in FUSED_DEVICES
            for group in groups
            for parameter in group["params"]
        )
        return torch.optim.AdamW(groups, lr=learning_rate, amsgrad=self.amsgrad, fused=fused or None, **self._moments)


class SGD(Optimizer):
    """Stochastic gradient descent; weight decay is added to the gradient."""

    momentum: Beta = Field(default=0.0, description="Share of the last step that is kept in this one.")
    nesterov: bool = Field(default=False, description="Look ahead along the momentum; needs momentum.")

    @field_validator("nesterov")
    @classmethod
    def _needs_momentum(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and info.data.get("momentum") == 0.0:
            raise ValueError("nesterov needs momentum above 0; set momentum = 0.9, say, or leave nesterov out")
        return nesterov

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make torch's SGD."""
        import torch

        return torch.optim.SGD(groups, lr=learning_rate, momentum=self.momentum, nesterov=self.nesterov)


class Adagrad(Optimizer):
    """Adagrad: rates shrink with the sum of squared gradients; weight decay is added to the gradient."""

    initial_accumulator: float = Field(default=0.0, ge=0.0, le=1e10, description="What the sum starts from.")
    eps: Epsilon = Field(default=1e-10, description="Added to the denominator, so that it is never zero.")

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make torch's Adagrad."""
        import torch

        return torch.optim.Adagrad(
            groups, lr=learning_rate, initial_accumulator_value=self.initial_accumulator, eps=self.eps
        )


class RMSprop(Optimizer):
    """RMSprop: rates follow a running mean of squared gradients; weight decay is added to the gradient."""

    alpha: Beta = Field(default=0.99, description="Decay of the running mean of squared gradients.")
    eps: Epsilon = Field(default=1e-8, description="Added to the denominator, so that it is never zero.")
    momentum: Beta = Field(default=0.0, description="Share of the last step that is kept in this one.")
    centered: bool = Field(default=False, description="Divide by the variance of gradients, not their mean square.")

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make torch's RMSprop."""
        import torch

        options = self.model_dump(include={"alpha", "eps", "momentum", "centered"})
        return torch.optim.RMSprop(groups, lr=learning_rate, **options)


class Adafactor(Optimizer):
    """Adafactor of transformers: second moments by row and column; by default at the spec's learning rate."""

    eps: Epsilon = Field(default=1e-30, description="Added to squared gradients, so that they are never zero.")
    eps_scale: Epsilon = Field(default=1e-3, description="The least scale of a parameter, for scale_parameter.")
    clip_threshold: float = Field(default=1.0, gt=0.0, le=1e10, description="Largest root mean square of a step.")
    decay_rate: float = Field(
        default=-0.8, ge=-10.0, lt=0.0, description="Power of the update number by which averages lengthen."
    )
    beta1: Beta | None = Field(default=None, description="Decay of a running mean of gradients; none by default.")
    scale_parameter: bool = Field(default=False, description="Scale each step by the size of its parameter.")
    relative_step: bool = Field(
        default=False, description="Take the rate from the update number instead of [train].learning_rate."
    )
    warmup_init: bool = Field(default=False, description="Let that rate start low; needs relative_step.")

    @field_validator("warmup_init")
    @classmethod
    def _needs_relative_step(cls, warmup_init: bool, info: ValidationInfo) -> bool:
        if warmup_init and info.data.get("relative_step") is False:
            raise ValueError("warmup_init needs relative_step = true; else use [schedule].warmup")
        return warmup_init

    @property
    def has_own_schedule(self) -> bool:
        """With relative steps it does."""
        return self.relative_step

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make transformers' Adafactor."""
        from transformers.optimization import Adafactor

        options = self.model_dump(exclude={"name", "weight_decay", "eps", "eps_scale"})
        given = None if self.relative_step else learning_rate
        eps = (self.eps, self.eps_scale)
        optimizer = Adafactor(groups, lr=given, eps=eps, **options)  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:  # unused in relative steps, but a number like everyone's
            group["lr"] = learning_rate
        return optimizer


class _Extra(Optimizer):
    """An optimizer that another package brings."""

    package: ClassVar[str]
    extra: ClassVar[str]

    def require(self) -> None:
        """Say which extra to install if the package is missing."""
        require(self.package, install=f"taskrecipe[{self.extra}]", wanted_by=f"optimizer {self.name!r}")

    def _import(self) -> Any:
        self.require()
        return import_module(self.package)


class AdamW8bit(_Adam, _Extra):
    """AdamW of bitsandbytes, which keeps its averages in 8 bits."""

    package: ClassVar[str] = "bitsandbytes"
    extra: ClassVar[str] = "adamw-8bit"

    min_8bit_size: Count = Field(default=4096, description="Parameters with fewer values keep 32 bits.")

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make bitsandbytes' AdamW8bit."""
        optimizer: torch.optim.Optimizer = self._import().optim.AdamW8bit(
            groups, lr=learning_rate, min_8bit_size=self.min_8bit_size, **self._moments
        )
        return optimizer


class ScheduleFree(_Adam, _Extra):
    """Schedule-free AdamW: an average of the weights takes the place of a schedule."""

    package: ClassVar[str] = "schedulefree"
    extra: ClassVar[str] = "schedule-free"

    warmup: int = Field(default=0, ge=0, le=LARGEST, description="Updates over which its rate rises.")
    r: float = Field(default=0.0, ge=0.0, le=100.0, description="Power by which later weights count more.")
    weight_lr_power: float = Field(
        default=2.0, ge=0.0, le=100.0, description="Power of the rate by which weights count during warmup."
    )

    @property
    def has_own_schedule(self) -> bool:
        """It is what it is for."""
        return True

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make schedulefree's AdamWScheduleFree, ready to train; who evaluates switches it by `eval` and `train`."""
        optimizer = self._import().AdamWScheduleFree(
            groups,
            lr=learning_rate,
            warmup_steps=self.warmup,
            r=self.r,
            weight_lr_power=self.weight_lr_power,
            **self._moments,
        )
        optimizer.train()
        return optimizer  # type: ignore[no-any-return]


class Lion(_Extra):
    """Lion: the sign of a momentum is the step, so it wants a rate 3 to 10 times lower than AdamW's."""

    package: ClassVar[str] = "lion_pytorch"
    extra: ClassVar[str] = "lion"

    beta1: Beta = Field(default=0.9, description="Share of the momentum in the step.")
    beta2: Beta = Field(default=0.99, description="Decay of the momentum.")

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make lion_pytorch's Lion."""
        optimizer: torch.optim.Optimizer = self._import().Lion(groups, lr=learning_rate, betas=(self.beta1, self.beta2))
        return optimizer


class _Projected(_Adam, _Extra):
    """An AdamW whose averages of linear layers' gradients are kept in fewer dimensions."""

    splits_linear: ClassVar[bool] = True

    rank: Count = Field(default=128, description="Dimensions kept; matrices no larger than it are left whole.")
    update_proj_gap: Count = Field(default=200, description="Updates after which the projection is made anew.")
    scale: float = Field(default=1.0, gt=0.0, le=1e6, description="What projected steps are multiplied by.")


class GaLore(_Projected):
    """AdamW on gradients of linear layers projected by their singular vectors (GaLore)."""

    package: ClassVar[str] = "galore_torch"
    extra: ClassVar[str] = "galore"

    scale: float = Field(default=0.25, gt=0.0, le=1e6, description="What projected steps are multiplied by.")
    proj_type: Literal["std", "reverse_std", "left", "right", "full"] = Field(
        default="std", description="The side to project on: std the shorter, reverse_std the longer, full both."
    )

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make galore_torch's AdamW."""
        galore = self._import()
        projected = project(groups, self.model_dump(include={"rank", "update_proj_gap", "scale", "proj_type"}))
        optimizer = galore.GaLoreAdamW(projected, lr=learning_rate, no_deprecation_warning=True, **self._moments)
        return keep_projectors(optimizer, galore.galore_projector.GaLoreProjector)


class Apollo(_Projected):
    """AdamW with one scale a channel, found in a low rank (APOLLO); rank 1 and scale_type tensor: APOLLO-Mini."""

    package: ClassVar[str] = "apollo_torch"
    extra: ClassVar[str] = "apollo"

    rank: Count = Field(default=256, description="Dimensions kept; matrices no larger than it are left whole.")
    proj: Literal["random", "svd"] = Field(default="random", description="How the projection is made.")
    scale_type: Literal["channel", "tensor"] = Field(
        default="channel", description="One scale for each channel, or one for the whole tensor."
    )

    def build(self, groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
        """Make apollo_torch's AdamW."""
        apollo = self._import()
        # Its scales by channel fit this side of the matrix only.
        options = self.model_dump(include={"rank", "update_proj_gap", "scale", "proj", "scale_type"})
        projected = project(groups, options | {"proj_type": "std"})
        optimizer = apollo.APOLLOAdamW(projected, lr=learning_rate, **self._moments)
        return keep_projectors(
            optimizer, apollo.random_projector.GradientProjector, apollo.svd_projector.GaLoreProjector
        )
