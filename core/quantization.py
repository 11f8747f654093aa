"""Load a model whose linear layers are kept in 4 or 8 bits by bitsandbytes, and turn it back into plain numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.model_parts import find_linear_layers

if TYPE_CHECKING:
    import torch

Loaded = tuple[Any, Mapping[str, Any]]
"""A model, and the report of transformers on which of its weights were in the file."""


def load_quantized(auto_class: Any, folder: Path, kind: str, options: Mapping[str, Any]) -> Loaded:
    """Load a model, and quantize the linear layers of its body one by one while they are read."""
    import torch

    with torch.device("meta"):
        skeleton = auto_class.from_config(options["config"])
    chosen = set(find_linear_layers(skeleton))
    while True:
        settings = _make_settings(kind, _list_linear_layers(skeleton) - chosen)
        model, report = auto_class.from_pretrained(folder, quantization_config=settings, **options)
        new = {name.removesuffix(".weight") for name in report["missing_keys"]} & chosen
        if not new:
            _keep_layout(model)
            return model, report
        chosen -= new  # a layer that is not in the file is new and will be trained: read again, without it


def _keep_layout(model: Any) -> None:
    """Keep bitsandbytes from packing weights again for evaluation: that would round their scales for training too."""
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def copy_dequantized(quantized: torch.nn.Module, plain: torch.nn.Module) -> None:
    """Give a model the numbers that the layers of a quantized one stand for."""
    import torch

    layers = dict(plain.named_modules())
    with torch.no_grad():
        for name, layer in quantized.named_modules():
            weight = _dequantize(layer)
            if weight is not None:
                own: Any = layers[name].weight
                own.copy_(weight if own.shape == weight.shape else weight.T)


def _dequantize(layer: Any) -> torch.Tensor | None:
    """Return the weight of a quantized layer as plain numbers; None if the layer is not quantized."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt

    weight: Any = getattr(layer, "weight", None)
    if isinstance(layer, Linear4bit):
        return dequantize_4bit(weight.data, weight.quant_state)
    if isinstance(layer, Linear8bitLt):
        scales: Any = layer.state.SCB if weight.SCB is None else weight.SCB
        scaled: torch.Tensor = weight.data * scales.view(-1, 1) / 127.0
        return scaled
    return None


def _list_linear_layers(module: torch.nn.Module) -> set[str]:
    import torch
    from transformers.pytorch_utils import Conv1D

    return {name for name, layer in module.named_modules() if isinstance(layer, (torch.nn.Linear, Conv1D))}


def _make_settings(kind: str, kept: Collection[str]) -> Any:
    """Return the settings of transformers that quantize every linear layer but those `kept` as they are."""
    import torch
    from transformers import BitsAndBytesConfig

    exactly = [f"^{re.escape(name)}$" for name in sorted(kept)]
    if kind == "int8":
        settings: dict[str, Any] = {"load_in_8bit": True}
    else:
        settings = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    return BitsAndBytesConfig(**settings, llm_int8_skip_modules=exactly)  # type: ignore[no-untyped-call]
