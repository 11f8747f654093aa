"""The built-in optimizers, and which weights each of them decays or projects.

Annotations are not strings in this module (no `from __future__ import annotations`): pydantic would evaluate each of
them for every subclass, and commands would start slower.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import override

from taskrecipe.errors import UsageError
from taskrecipe.plugins.kinds import Optimizer
from taskrecipe.plugins.projections import keep_projectors, project_groups
from taskrecipe.spec.table import LARGEST, Count
from taskrecipe.system.optional_packages import require_package

if TYPE_CHECKING:
    import torch

Groups = list[dict[str, Any]]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Epsilon = Annotated[float, Field(gt=0.0, le=1.0)]

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu", "hpu"})
# Norms of torch and those that models define for themselves: LlamaRMSNorm, FrozenBatchNorm2d, T5LayerNorm.
NORM_CLASS = re.compile(r"Norm([123]d)?$")


def parameter_groups(model: "torch.nn.Module", optimizer: Optimizer) -> Groups:
    """Group the trained parameters by whether weight decay applies: not to biases, norms and vectors."""
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, parameter, module in _trained_parameters(model):
        decays = not _has_no_decay(name, parameter, module)
        linear = optimizer.splits_linear and _is_linear(module) and parameter.ndim == 2
        new = {"params": [], "param_names": [], "weight_decay": optimizer.weight_decay if decays else 0.0}
        group = groups.setdefault((decays, linear), new | ({"linear": True} if linear else {}))
        group["params"].append(parameter)
        group["param_names"].append(name)
    if not groups:
        raise UsageError("there is nothing to train: every parameter of the model is frozen")
    return list(groups.values())


def _trained_parameters(model: "torch.nn.Module") -> "Iterator[tuple[str, torch.nn.Parameter, torch.nn.Module]]":
    """Yield every parameter that is not frozen, once, with its name and the first module that owns it."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter, module


def _has_no_decay(name: str, parameter: "torch.nn.Parameter", module: "torch.nn.Module") -> bool:
    is_norm = any(NORM_CLASS.search(kind.__name__) for kind in type(module).__mro__)
    return parameter.ndim < 2 or is_norm or "bias" in name.rpartition(".")[2]


def _is_linear(module: "torch.nn.Module") -> bool:
    import torch
    from transformers.pytorch_utils import Conv1D  # what GPT-2 calls its linear layers

    return isinstance(module, (torch.nn.Linear, Conv1D))


class _Adam(Optimizer):
    """The settings that all variants of Adam share."""

    beta1: Beta = Field(default=0.9, description="Decay of the running mean of gradients.")
    beta2: Beta = Field(default=0.999, description="Decay of the running mean of squared gradients.")
    eps: Epsilon = Field(default=1e-8, description="Added to the denominator, so that it is never zero.")

    @property
    def _moments(self) -> dict[str, Any]:
        return {"betas": (self.beta1, self.beta2), "eps": self.eps}


class AdamW(_Adam):
    """Adam with decoupled weight decay, as one fused kernel where device and types allow it."""

    shapes_state: ClassVar[tuple[str, ...]] = ("amsgrad",)

    amsgrad: bool = Field(default=False, description="Divide by the largest running mean so far.")

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        import torch

        fused = all(
            parameter.is_floating_point() and parameter.device.type in FUSED_DEVICES
            for group in groups
            for parameter in group["params"]
        )
        return torch.optim.AdamW(groups, lr=learning_rate, amsgrad=self.amsgrad, fused=fused or None, **self._moments)


class SGD(Optimizer):
    """Stochastic gradient descent; weight decay is added to the gradient."""

    momentum: Beta = Field(default=0.0, description="Share of the last step that is added to this one.")
    nesterov: bool = Field(default=False, description="Look ahead along the momentum; needs momentum.")

    @field_validator("nesterov")
    @classmethod
    def _needs_momentum(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and info.data.get("momentum") == 0.0:
            raise ValueError("nesterov needs momentum above 0; for example, set momentum = 0.9, or remove nesterov")
        return nesterov

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        import torch

        return torch.optim.SGD(groups, lr=learning_rate, momentum=self.momentum, nesterov=self.nesterov)


class Adagrad(Optimizer):
    """Adagrad: learning rates decrease with the sum of squared gradients; weight decay is added to the gradient."""

    shapes_state: ClassVar[tuple[str, ...]] = ("initial_accumulator",)

    initial_accumulator: float = Field(default=0.0, ge=0.0, le=1e10, description="Initial value of the sum.")
    eps: Epsilon = Field(default=1e-10, description="Added to the denominator, so that it is never zero.")

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        import torch

        return torch.optim.Adagrad(
            groups, lr=learning_rate, initial_accumulator_value=self.initial_accumulator, eps=self.eps
        )


class RMSprop(Optimizer):
    """RMSprop: learning rates follow a running mean of squared gradients; weight decay is added to the gradient."""

    shapes_state: ClassVar[tuple[str, ...]] = ("momentum", "centered")

    alpha: Beta = Field(default=0.99, description="Decay of the running mean of squared gradients.")
    eps: Epsilon = Field(default=1e-8, description="Added to the denominator, so that it is never zero.")
    momentum: Beta = Field(default=0.0, description="Share of the last step that is added to this one.")
    centered: bool = Field(default=False, description="Divide by the variance of gradients, not their mean square.")

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        import torch

        options = self.model_dump(include={"alpha", "eps", "momentum", "centered"})
        return torch.optim.RMSprop(groups, lr=learning_rate, **options)


class Adafactor(Optimizer):
    """Adafactor of transformers: second moments by row and column; it uses the spec's learning rate by default."""

    shapes_state: ClassVar[tuple[str, ...]] = ("beta1",)
    needs_whole_weights: ClassVar[bool] = True

    eps: Epsilon = Field(default=1e-30, description="Added to squared gradients, so that they are never zero.")
    eps_scale: Epsilon = Field(default=1e-3, description="The smallest scale of a parameter, for scale_parameter.")
    clip_threshold: float = Field(default=1.0, gt=0.0, le=1e10, description="Largest root mean square of a step.")
    decay_rate: float = Field(
        default=-0.8, ge=-10.0, lt=0.0, description="Exponent of the update number in the decay of averages."
    )
    beta1: Beta | None = Field(default=None, description="Decay of the running mean of gradients; None for no mean.")
    scale_parameter: bool = Field(default=False, description="Scale each step by the size of its parameter.")
    relative_step: bool = Field(
        default=False, description="Compute the learning rate from the update number instead of [train].learning_rate."
    )
    warmup_init: bool = Field(default=False, description="Start with a low learning rate; needs relative_step.")

    @field_validator("warmup_init")
    @classmethod
    def _needs_relative_step(cls, warmup_init: bool, info: ValidationInfo) -> bool:
        if warmup_init and info.data.get("relative_step") is False:
            raise ValueError("warmup_init needs relative_step = true; without it, use [schedule].warmup")
        return warmup_init

    @property
    @override
    def has_own_schedule(self) -> bool:
        return self.relative_step

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        from transformers.optimization import Adafactor

        options = self.model_dump(exclude={"name", "weight_decay", "eps", "eps_scale"})
        given = None if self.relative_step else learning_rate
        eps = (self.eps, self.eps_scale)
        optimizer = Adafactor(groups, lr=given, eps=eps, **options)  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:  # unused with relative steps, but the loop expects a number
            group["lr"] = learning_rate
        return optimizer


class _Extra(Optimizer):
    """An optimizer from an optional package."""

    package: ClassVar[str]
    extra: ClassVar[str]

    @override
    def require(self) -> None:
        require_package(self.package, install=f"taskrecipe[{self.extra}]", wanted_by=f"optimizer {self.name!r}")

    def _import(self) -> Any:
        self.require()
        return import_module(self.package)


class AdamW8bit(_Adam, _Extra):
    """AdamW of bitsandbytes, which stores its running means in 8 bits."""

    package: ClassVar[str] = "bitsandbytes"
    extra: ClassVar[str] = "adamw-8bit"
    shapes_state: ClassVar[tuple[str, ...]] = ("min_8bit_size",)
    needs_whole_weights: ClassVar[bool] = True

    min_8bit_size: Count = Field(default=4096, description="Parameters with fewer values use 32 bits.")

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        optimizer: torch.optim.Optimizer = self._import().optim.AdamW8bit(
            groups, lr=learning_rate, min_8bit_size=self.min_8bit_size, **self._moments
        )
        return optimizer


class ScheduleFree(_Adam, _Extra):
    """Schedule-free AdamW: an average of the weights replaces the schedule."""

    package: ClassVar[str] = "schedulefree"
    extra: ClassVar[str] = "schedule-free"
    shapes_state: ClassVar[tuple[str, ...]] = ("beta1",)  # the training weights depend on it

    warmup: int = Field(default=0, ge=0, le=LARGEST, description="Updates over which its learning rate increases.")
    r: float = Field(default=0.0, ge=0.0, le=100.0, description="Exponent that gives later weights more influence.")
    weight_lr_power: float = Field(
        default=2.0,
        ge=0.0,
        le=100.0,
        description="Exponent of the learning rate in an update's weight during warmup.",
    )

    @property
    @override
    def has_own_schedule(self) -> bool:
        return True

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        optimizer = self._import().AdamWScheduleFree(
            groups,
            lr=learning_rate,
            warmup_steps=self.warmup,
            r=self.r,
            weight_lr_power=self.weight_lr_power,
            **self._moments,
        )
        optimizer.train()  # evaluation switches it with `eval` and back
        return optimizer  # type: ignore[no-any-return]


class Lion(_Extra):
    """Lion: the step is the sign of a momentum. Use a learning rate 3 to 10 times lower than AdamW's."""

    package: ClassVar[str] = "lion_pytorch"
    extra: ClassVar[str] = "lion"

    beta1: Beta = Field(default=0.9, description="Share of the momentum in the step.")
    beta2: Beta = Field(default=0.99, description="Decay of the momentum.")

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        optimizer: torch.optim.Optimizer = self._import().Lion(groups, lr=learning_rate, betas=(self.beta1, self.beta2))
        return optimizer


class _Projected(_Adam, _Extra):
    """An AdamW whose running means for linear layers have fewer dimensions."""

    splits_linear: ClassVar[bool] = True
    needs_whole_weights: ClassVar[bool] = True

    rank: Count = Field(default=128, description="Dimensions of the projection; smaller matrices are not projected.")
    update_proj_gap: Count = Field(default=200, description="Updates after which the projection is computed again.")
    scale: float = Field(default=1.0, gt=0.0, le=1e6, description="Factor of projected steps.")


class GaLore(_Projected):
    """AdamW on gradients of linear layers projected by their singular vectors (GaLore)."""

    package: ClassVar[str] = "galore_torch"
    extra: ClassVar[str] = "galore"
    shapes_state: ClassVar[tuple[str, ...]] = ("rank", "proj_type")

    scale: float = Field(default=0.25, gt=0.0, le=1e6, description="Factor of projected steps.")
    proj_type: Literal["std", "reverse_std", "left", "right", "full"] = Field(
        default="std", description="The side to project on: std the shorter, reverse_std the longer, full both."
    )

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        galore = self._import()
        projected = project_groups(groups, self.model_dump(include={"rank", "update_proj_gap", "scale", "proj_type"}))
        optimizer = galore.GaLoreAdamW(projected, lr=learning_rate, no_deprecation_warning=True, **self._moments)
        return keep_projectors(optimizer, galore.galore_projector.GaLoreProjector)


class Apollo(_Projected):
    """AdamW with one scale per channel from a low-rank projection (APOLLO). APOLLO-Mini: rank 1, scale_type tensor."""

    package: ClassVar[str] = "apollo_torch"
    extra: ClassVar[str] = "apollo"
    shapes_state: ClassVar[tuple[str, ...]] = ("rank", "proj")

    rank: Count = Field(default=256, description="Dimensions of the projection; smaller matrices are not projected.")
    proj: Literal["random", "svd"] = Field(default="random", description="How the projection is computed.")
    scale_type: Literal["channel", "tensor"] = Field(
        default="channel", description="One scale for each channel, or one for the whole tensor."
    )

    @override
    def build(self, groups: Groups, learning_rate: float) -> "torch.optim.Optimizer":
        apollo = self._import()
        # Its scales per channel fit only this side of the matrix.
        options = self.model_dump(include={"rank", "update_proj_gap", "scale", "proj", "scale_type"})
        projected = project_groups(groups, options | {"proj_type": "std"})
        optimizer = apollo.APOLLOAdamW(projected, lr=learning_rate, **self._moments)
        return keep_projectors(
            optimizer, apollo.random_projector.GradientProjector, apollo.svd_projector.GaLoreProjector
        )
