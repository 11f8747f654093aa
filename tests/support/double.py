"""Models in double precision throughout: transformers computes norms, rotations and attention weights in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class DoubleThroughout(TorchFunctionMode):
    """While it is entered, what a model casts to float32 becomes float64, unless it is in half precision."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            return torch.Tensor.to(args[0], torch.float64)
        args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)
