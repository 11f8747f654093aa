"""LoRA: the pretrained weights stay as they are, and small matrices next to the linear layers are trained."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from taskrecipe import Count, Effect, Recipe, Share, Technique, Text, UsageError, require_package

if TYPE_CHECKING:
    import torch

    from taskrecipe import ModelSource

ADAPTER = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"

_PREFIX = "base_model.model."
"""What names in an adapter's file begin with."""
_NAME = "default"
"""The name that peft gives to the only adapter of a model. Files leave it out."""
_HELD = "held"


class Lora(Technique):
    """Low-rank adapters (LoRA, DoRA, rsLoRA) by peft, for any recipe with a pretrained model.

    The weights of the pretrained model don't change. Next to each linear layer of its body, two small matrices are
    trained, whose product is added to what the layer computes. Heads and all weights that are new are trained whole.
    Checkpoints and the exported model hold only what is trained; the exported model is in the layout of peft. With
    `[model].quantize`, the pretrained weights are kept in 4 or 8 bits.
    """

    needs_pretrained: ClassVar = True
    trains_quantized: ClassVar = True
    shapes_state: ClassVar = ("rank", "targets", "use_dora", "also_train")
    # A tiny model has no body worth keeping: the adapters must do most of the work.
    sample_settings: ClassVar = {"rank": 16, "alpha": 64.0}

    rank: Count = Field(default=8, le=4096, description="Width of the small matrices: more can learn more.")
    alpha: float = Field(
        default=16.0, gt=0.0, le=1e6, description="What is added is multiplied by alpha / rank (rsLoRA: √rank)."
    )
    dropout: Share = Field(default=0.0, lt=1.0, description="Dropout on what goes into the small matrices.")
    targets: list[Text] | None = Field(
        default=None,
        min_length=1,
        description='Names of linear or convolution layers, * for any part of one: ["*.query", "*.value"]; by default '
        "all linear layers of the body.",
    )
    also_train: list[Text] = Field(
        default=[],
        description='Names of further parameters that are trained whole, * for any part of one: ["*embeddings*"].',
    )
    use_dora: bool = Field(default=False, description="DoRA: train the length of each weight vector separately.")
    use_rslora: bool = Field(default=False, description="rsLoRA: divide alpha by √rank, which suits high ranks.")

    @override
    def objections(self, recipe: Recipe) -> dict[str, str]:
        names = [technique.name for technique in recipe.spec.techniques]
        if names.count(self.name) > 1:
            return {"name": "lora can be used only once: its adapters would have the same names"}
        if "freeze" in names[: names.index(self.name)]:
            return {"name": "lora must come before freeze, which then applies to the adapters too"}
        return {}

    @override
    def require(self) -> None:
        require_package("peft", install="taskrecipe[lora]", wanted_by="technique 'lora'")

    @override
    def build(self, recipe: Recipe, source: ModelSource) -> Effect:
        return Adapters(self, recipe, source)

    @override
    def load_exported(self, module: torch.nn.Module, folder: Path) -> torch.nn.Module:
        from safetensors.torch import load_file

        inject_adapters(module, json.loads((folder / SETTINGS).read_bytes()))
        weights = {_name_in_model(name): value for name, value in load_file(folder / ADAPTER).items()}
        unknown = module.load_state_dict(weights, strict=False).unexpected_keys
        if unknown:
            raise UsageError(f"{folder / ADAPTER} is not an adapter of this model: it has no {unknown[0]!r}")
        return module

    @override
    def merge(self, module: torch.nn.Module) -> torch.nn.Module:
        """Add each product of small matrices to the weight next to it, and remove the matrices."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        adapted = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, BaseTunerLayer)]
        for name, layer in adapted:
            layer.merge()
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, layer.get_base_layer())
        return module


class Adapters(Effect):
    """Puts adapters next to linear layers, and keeps everything else but heads and new weights as it is."""

    def __init__(self, options: Lora, recipe: Recipe, source: ModelSource) -> None:
        if not source.has_weights:
            raise UsageError(
                f"lora needs pretrained weights: {source.name!r} holds only a configuration. Train it without lora, "
                "or name a model that has weights in [model].name"
            )
        self.options, self.recipe, self.source = options, recipe, source
        self.whole: set[str] = set()
        self.settings: dict[str, Any] = {}

    @override
    def change_model(self, module: torch.nn.Module) -> torch.nn.Module:
        from taskrecipe import find_heads, find_new_weights
        from taskrecipe.contrib.techniques.names import match_names

        parameters = [name for name, _ in module.named_parameters()]
        self.whole = find_heads(module) | find_new_weights(module)
        for pattern in self.options.also_train:
            self.whole.update(match_names(pattern, parameters, "lora: no parameter"))
        self.settings = self._make_settings(module)
        inject_adapters(module, self.settings)
        for name, parameter in module.named_parameters():
            if name in self.whole:
                parameter.requires_grad_(True)
        if self.recipe.spec.train.precision == "bf16":
            _compute_in_bf16(module)
        return module

    @override
    def saved_names(self, module: torch.nn.Module) -> set[str]:
        trained = {name for name, parameter in module.named_parameters() if _is_adapter(name) or name in self.whole}
        return trained | {name for name, _ in module.named_buffers()}  # such as statistics; they are small

    @override
    def export(self, module: torch.nn.Module, folder: Path) -> bool:
        from safetensors.torch import save

        kept, weights = self.saved_names(module), module.state_dict()
        named = {_name_in_file(name): value.contiguous().clone() for name, value in weights.items() if name in kept}
        (folder / ADAPTER).write_bytes(save(named, {"format": "pt"}))
        (folder / SETTINGS).write_text(json.dumps(self.settings, indent=2), encoding="utf-8")
        for part in ("config", "generation_config"):
            settings: Any = getattr(module, part, None)
            if settings is not None:
                settings.save_pretrained(folder)
        return True

    def _make_settings(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return the adapter's settings as peft writes them."""
        options, name = self.options, self.source.name
        return {
            "peft_type": "LORA",
            "base_model_name_or_path": name,
            "revision": self.source.revision,
            "r": options.rank,
            "lora_alpha": options.alpha,
            "lora_dropout": options.dropout,
            "target_modules": self._choose_layers(module),
            "modules_to_save": _list_modules(module, self.whole),
            "use_dora": options.use_dora,
            "use_rslora": options.use_rslora,
            "inference_mode": True,
        }

    def _choose_layers(self, module: torch.nn.Module) -> list[str]:
        import torch

        from taskrecipe import find_linear_layers
        from taskrecipe.contrib.techniques.names import match_names

        linear = find_linear_layers(module)
        if self.options.targets is None:
            whole = {name.rpartition(".")[0] for name in self.whole}
            found = [name for name in linear if name not in whole]
        else:
            convolutions = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
            known = [*linear, *(name for name, part in module.named_modules() if isinstance(part, convolutions))]
            matched = (match_names(pattern, known, "lora: no layer") for pattern in self.options.targets)
            found = sorted({name for names in matched for name in names})
        if not found:
            kind = type(module).__name__
            raise UsageError(f"lora: a {kind} has no pretrained linear layer below its head; name layers in 'targets'")
        return found


def inject_adapters(module: torch.nn.Module, settings: dict[str, Any]) -> None:
    """Put adapters into a model, as an adapter's settings say. Nothing but them is trained then."""
    from peft import LoraConfig, inject_adapter_in_model

    own = ("r", "lora_alpha", "lora_dropout", "use_dora", "use_rslora")
    layers = [f"{_HELD}.{name}" for name in settings["target_modules"]]
    config = LoraConfig(**{key: settings[key] for key in own}, target_modules=layers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the weights of GPT-2's layers are transposed, which peft handles
        inject_adapter_in_model(config, _hold(module), _NAME)


def _hold(module: torch.nn.Module) -> torch.nn.Module:
    """Put a model into another module: peft asks models of transformers for token embeddings, and some have none."""
    import torch

    holder = torch.nn.Module()
    holder.add_module(_HELD, module)
    for flag in ("is_loaded_in_4bit", "is_loaded_in_8bit"):
        setattr(holder, flag, getattr(module, flag, False))
    return holder


def _compute_in_bf16(module: torch.nn.Module) -> None:
    """Let layers of 4 bits compute in the precision of the forward pass."""
    import torch

    for layer in module.modules():
        if hasattr(layer, "compute_dtype"):
            layer.compute_dtype = torch.bfloat16  # type: ignore[assignment]


def _list_modules(module: torch.nn.Module, whole: set[str]) -> list[str]:
    """Return the outermost modules all of whose parameters are trained whole."""
    found: list[str] = []
    for name, part in module.named_modules():
        names = [f"{name}.{inner}" for inner, _ in part.named_parameters()]
        if name and names and whole.issuperset(names) and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
    return found


def _is_adapter(name: str) -> bool:
    return any(part.startswith("lora_") for part in name.split("."))


def _name_in_file(name: str) -> str:
    """Return the name that peft gives to a parameter in a file."""
    if _is_adapter(name):
        name = name.replace(f".{_NAME}.weight", "" if "lora_magnitude_vector" in name else ".weight")
    return _PREFIX + name


def _name_in_model(name: str) -> str:
    name = name.removeprefix(_PREFIX)
    if not _is_adapter(name):
        return name
    return (
        name + f".{_NAME}.weight"
        if name.endswith("lora_magnitude_vector")
        else name.replace(".weight", f".{_NAME}.weight")
    )
