"""What takes the place of torch's random functions while `RowDropout` is entered."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from taskrecipe.training.dropout import RowDropout


def _dropout(
    mode: RowDropout, func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not training or not p:
        return input
    noise = mode.noise(input, input.shape, p)
    if noise is None:
        mode.warn_unkeyed(func, f" on a tensor of shape {tuple(input.shape)}")
        return functional.dropout(input, p, training, inplace)
    return input.mul_(noise) if inplace else input * noise


def _torch_dropout(mode: RowDropout, func: Any, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return _dropout(mode, func, input, p, train)


def _torch_dropout_(mode: RowDropout, func: Any, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return _dropout(mode, func, input, p, train, inplace=True)


def _feature_dropout(
    mode: RowDropout, func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Drop whole channels."""
    if not training or not p:
        return input
    noise = mode.noise(input, input.shape[:2], p)
    if noise is None:
        mode.warn_unkeyed(func, f" on a tensor of shape {tuple(input.shape)}")
        dropped: torch.Tensor = func(input, p, training, inplace)
        return dropped
    noise = noise.view([*noise.shape, *[1] * (input.ndim - 2)])
    return input.mul_(noise) if inplace else input * noise


def _attention(
    mode: RowDropout,
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention as `scaled_dot_product_attention` defines it, with probabilities dropped by row."""
    if not dropout_p:
        attended: torch.Tensor = func(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return attended
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (states.repeat_interleave(groups, -3) for states in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # Added, a mask costs nothing in the backward pass.
        attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill_(~attn_mask, float("-inf"))
    if attn_mask is not None:
        scores += attn_mask
    # A query that may see nothing gets zeros, as it does in torch.
    probabilities = torch.ops.aten._safe_softmax(scores, -1)
    return _dropout(mode, functional.dropout, probabilities, dropout_p) @ value


def _rand(mode: RowDropout, func: Any, *size: Any, **options: Any) -> torch.Tensor:
    """Draw as drop-path does, one number a row, or as layer drop does, a single one."""
    shape = list(size[0] if len(size) == 1 and not isinstance(size[0], int) else size) or list(options.pop("size", []))
    if options.get("generator") is not None or options.get("out") is not None:
        drawn: torch.Tensor = func(shape, **options)
        return drawn
    found = mode.uniform(shape, options.get("dtype") or torch.get_default_dtype())
    if found is None:
        mode.warn_unkeyed(func, f" for a tensor of shape {tuple(shape)}")
        return torch.rand(shape, **options)
    return found.to(options.get("device") or torch.get_default_device())


def _rand_like(mode: RowDropout, _: Any, input: torch.Tensor, **options: Any) -> torch.Tensor:
    return _rand(mode, torch.rand, list(input.shape), dtype=options.get("dtype") or input.dtype, device=input.device)


def _randint_like(mode: RowDropout, _: Any, input: torch.Tensor, *limits: int, **options: Any) -> torch.Tensor:
    limits = limits or (options["low"], options["high"]) if "low" in options else limits or (options["high"],)
    low, high = limits if len(limits) == 2 else (0, limits[0])
    dtype = options.get("dtype") or input.dtype
    drawn = _rand(mode, torch.rand, list(input.shape), dtype=torch.float64, device=input.device)
    return (drawn * (high - low) + low).floor_().to(dtype)


def _bernoulli_(mode: RowDropout, func: Any, input: torch.Tensor, p: Any = 0.5, **options: Any) -> torch.Tensor:
    if options.get("generator") is not None:
        drawn: torch.Tensor = func(input, p, **options)
        return drawn
    return input.copy_(_rand(mode, torch.rand, list(input.shape), dtype=torch.float32, device=input.device) < p)


def _unkeyed(mode: RowDropout, func: Any, *args: Any, **options: Any) -> Any:
    """Draw from torch's generator, and warn of it, unless the caller has a generator of its own."""
    if options.get("generator") is None:
        mode.warn_unkeyed(func)
    return func(*args, **options)


def _multi_head_attention(mode: RowDropout, func: Any, *args: Any, **options: Any) -> Any:
    """Warn of the attention of `nn.MultiheadAttention` if it drops: it calls torch's functions where none is seen."""
    dropout_p = args[10] if len(args) > 10 else options.get("dropout_p")
    if dropout_p and options.get("training", True):
        mode.warn_unkeyed(func)
    return func(*args, **options)


def _recurrent(mode: RowDropout, func: Any, *args: Any, **options: Any) -> Any:
    """Warn of recurrent layers if they drop between layers, which happens inside of one function."""
    dropout, train = next((float(rate), train) for rate, train in pairwise(args) if isinstance(rate, float))
    if dropout and train:
        mode.warn_unkeyed(func)
    return func(*args, **options)


Handler = Callable[..., Any]

UNKEYED: tuple[Any, ...] = (
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    functional.gumbel_softmax,
    functional.rrelu,
    torch.bernoulli,
    torch.multinomial,
    torch.normal,
    torch.randint,
    torch.randn,
    torch.randn_like,
    torch.randperm,
    torch.Tensor.bernoulli,
    torch.Tensor.exponential_,
    torch.Tensor.multinomial,
    torch.Tensor.normal_,
    torch.Tensor.random_,
    torch.Tensor.uniform_,
)

HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(UNKEYED, _unkeyed),
    functional.dropout: _dropout,
    torch.dropout: _torch_dropout,
    torch.dropout_: _torch_dropout_,
    functional.dropout1d: _feature_dropout,
    functional.dropout2d: _feature_dropout,
    functional.dropout3d: _feature_dropout,
    functional.scaled_dot_product_attention: _attention,
    functional.multi_head_attention_forward: _multi_head_attention,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
    torch.rand: _rand,
    torch.rand_like: _rand_like,
    torch.randint_like: _randint_like,
    torch.Tensor.bernoulli_: _bernoulli_,
}
