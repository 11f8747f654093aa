"""The gradients of an update that DeepSpeed has divided among the processes."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from typing_extensions import override

from taskrecipe.training.gradients import Gradients


class DividedGradients(Gradients):
    """The gradients that DeepSpeed's optimizer will use. Every process holds a part of them, already summed."""

    def __init__(self, module: torch.nn.Module, accelerator: Accelerator, engine: Any) -> None:
        super().__init__(module, accelerator)
        self.engine = engine

    @override
    def clip(self, limit: float) -> torch.Tensor:
        # Limited here and not by DeepSpeed, which knows the norm only when it has taken the step.
        groups = self.engine.optimizer.averaged_gradients.values()
        gradients = [gradient for group in groups for gradient in group]
        own = torch.nn.utils.get_total_norm(gradients).to(self.accelerator.device)
        norm: torch.Tensor = self.accelerator.reduce(own.square(), "sum").sqrt()
        if limit != float("inf"):
            torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm
