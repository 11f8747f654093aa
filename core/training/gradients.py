"""The gradients of an update after its backward passes: complete, and limited in norm."""

from __future__ import annotations

import torch
from accelerate import Accelerator


class Gradients:
    """The gradients of the trained parameters. Every process holds all of them."""

    def __init__(self, module: torch.nn.Module, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def clip(self, limit: float) -> torch.Tensor:
        """Limit the norm of the gradient, and return what it was before. All processes must call this together."""
        self.accelerator.unscale_gradients()
        # Accelerate's own function first looks at every gradient for one that is sharded.
        return torch.nn.utils.clip_grad_norm_(self.parameters, limit)
