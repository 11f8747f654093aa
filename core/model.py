"""Load a model and its processor from the hub, from a folder, or from a configuration alone.

Files of the hub are downloaded first, so that transformers reads local files only: all of one commit, weights only as
safetensors, no code, and no network afterwards. Weights are float32 in memory, whatever they were saved as;
`[train].precision` sets the number type of the forward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe import hub
from taskrecipe.errors import RecipeError, UsageError
from taskrecipe.model_parts import mark_new_weights
from taskrecipe.system.library_output import quiet_libraries
from taskrecipe.system.suggestions import did_you_mean

if TYPE_CHECKING:
    import torch

    from taskrecipe.recipe import Recipe
    from taskrecipe.spec.spec import Model

ALIGNMENT = 64
"""Bytes that addresses of tensors are multiples of, where torch allocates them."""


@dataclass(frozen=True)
class ModelSource:
    """Where the model and its processor come from."""

    name: str | None
    """A folder, or a hub id; None if `type` is given instead."""
    type: str | None = None
    revision: str | None = None
    pretrained: bool = True
    processor: str | None = None
    config_values: dict[str, Any] = field(default_factory=dict)
    """Values of the model's configuration to replace. A dot in a key separates a nested configuration and its key."""
    exported: bool = False
    """Whether a run of the same recipe has exported this model. Its processor and sizes are then final."""
    quantize: Literal["nf4", "int8"] | None = None
    """The number type that the body's linear layers are kept in. Such weights are not trained."""
    reads_weights: bool = True
    """Whether the weights are needed. A preview needs only the configuration and the processor."""

    @classmethod
    def of(cls, table: Model) -> ModelSource:
        """Make the source that `[model]` names."""
        return cls(
            table.name,
            table.type,
            table.revision,
            table.pretrained,
            table.processor,
            dict(table.config),
            quantize=table.quantize,
        )

    def fetch(self) -> None:
        """Download what is on the hub now, not when it is first used."""
        _ = self.folder, self.processor and self.processor_folder

    @cached_property
    def folder(self) -> Path | None:
        """The folder that holds the model's files, downloaded if necessary; None if `type` is given."""
        if self.name is None:
            return None
        if Path(self.name).is_dir():
            return Path(self.name)
        repo = hub.Repo("model", self.name, self.revision)
        return hub.model_folder(repo, "weights" if self.pretrained and self.reads_weights else "config")

    @cached_property
    def processor_folder(self) -> Path:
        """The folder that holds the tokenizer's or image processor's files."""
        if self.processor is None:
            if self.folder is None:
                raise UsageError("[model].processor is missing: a model built from [model].type has none of its own")
            return self.folder
        if Path(self.processor).is_dir():
            return Path(self.processor)
        return hub.model_folder(hub.Repo("model", self.processor), "processor")

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to start from; a folder may hold a configuration only."""
        if not self.pretrained or self.folder is None:
            return False
        names = {path.name for path in self.folder.iterdir()}
        if not self.reads_weights and not Path(str(self.name)).is_dir():
            return True  # they are on the hub, and were not downloaded
        if hub.weight_files(self.folder, names):
            return True
        if any(name.endswith(hub.PICKLES) for name in names):
            raise UsageError(f"[model].name: {self.name!r} {hub.only_pickles(names)}")
        return False

    def config(self, **values: Any) -> Any:
        """Return the model's configuration with `values`, and then with the spec's values."""
        with _explain_errors("[model.config]" if self.config_values else self._description):
            base = self._base_config()
            tree = {**base.to_dict(), **values, "dtype": "float32"}
            # If transformers has several classes, it chooses by this list, and fails without one.
            tree["architectures"] = tree.get("architectures") or []
            for key, value in self.config_values.items():
                _set_value(tree, base.attribute_map.get(key, key), value)
            _update_dependent(tree, {**values, **self.config_values})
            return type(base).from_dict(tree)

    def model(self, auto_class: Any, **config_values: Any) -> Any:
        """Load a model of `auto_class`. Heads that don't fit the configuration are new, with a warning."""
        config = self.config(**config_values)
        with _explain_errors(self._description):
            self._refuse_quantized(config)
            if not self.has_weights:
                model = auto_class.from_config(config)
                mark_new_weights(model, model.state_dict())
                return model
            return self._load_weights(auto_class, config)

    def _load_weights(self, auto_class: Any, config: Any) -> Any:
        """Load the pretrained weights, and remember which ones of the model are new."""
        options: dict[str, Any] = {
            "config": config,
            "ignore_mismatched_sizes": True,
            "output_loading_info": True,
            "use_safetensors": True,
            "trust_remote_code": False,
        }
        if self.quantize is None or self.folder is None:
            model, report = auto_class.from_pretrained(self.folder, **options)
        else:
            from taskrecipe.quantization import load_quantized

            model, report = load_quantized(auto_class, self.folder, self.quantize, options)
        new = _list_new_weights(report)
        mark_new_weights(model, new)
        if not self.exported:
            _warn_of_new_weights(model, new, self._description)
        return model

    def tokenizer(self, **options: Any) -> Any:
        """Load the model's tokenizer."""
        from transformers import AutoTokenizer

        with _explain_errors(f"the tokenizer of {self._description}"):
            tokenizer = AutoTokenizer.from_pretrained(self.processor_folder, trust_remote_code=False, **options)
            if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
                raise UsageError(
                    f"{str(self.processor or self.name)!r} has no tokenizer: no vocabulary is among its files"
                )
        return tokenizer

    def image_processor(self, **options: Any) -> Any:
        """Load the model's image processor, in the version that needs only Pillow."""
        from PIL import Image
        from transformers import AutoImageProcessor

        with _explain_errors(f"the image processor of {self._description}"):
            processor = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
                self.processor_folder, trust_remote_code=False, backend="pil", **options
            )
            processor(Image.new("RGB", (64, 48)))  # settings of a wrong type are noticed here, not while training
            return processor

    def _refuse_quantized(self, config: Any) -> None:
        quantized = getattr(config, "quantization_config", None)
        if quantized is None:
            return
        if self.has_weights:
            method = quantized.get("quant_method") if isinstance(quantized, dict) else None
            kind = f" ({method})" if method else ""
            raise UsageError(
                f"{self._description} is quantized{kind}, and such weights can't be trained; "
                "name the model that it was made from, or set [model].pretrained = false to start from random weights"
            )
        del config.quantization_config  # new weights are not quantized

    @property
    def _description(self) -> str:
        return f"[model].type: {self.type!r}" if self.name is None else f"[model].name: {self.name!r}"

    def _base_config(self) -> Any:
        from transformers import CONFIG_MAPPING, AutoConfig

        if self.folder is not None:
            if not (self.folder / "config.json").is_file():
                raise UsageError(f"{self._description} is not a model: there is no config.json")
            return AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        if self.type is None or self.type not in CONFIG_MAPPING:
            hint = did_you_mean(self.type or "", CONFIG_MAPPING)
            raise UsageError(f"{self._description} is not an architecture that transformers knows{hint}")
        return AutoConfig.for_model(self.type)


def require_embeddings(module: Any, tokenizer: Any, columns: Iterable[Any]) -> None:
    """Raise if rows hold token ids that the model has no embedding for.

    `columns` are those of token ids, as Arrow arrays. They are read only if the tokenizer has such ids at all.
    """
    if not hasattr(tokenizer, "get_vocab") or not hasattr(module, "get_input_embeddings"):
        return
    size = getattr(module.get_input_embeddings(), "num_embeddings", None)
    if size is None or max(tokenizer.get_vocab().values(), default=0) < size:
        return
    largest = max(map(_find_largest, columns), default=size)
    if largest >= size:
        raise UsageError(
            f"the tokenizer gives token ids up to {largest}, and the model has embeddings for {size} tokens, numbered "
            "from 0: they don't belong together. Set [model].processor to the model's own tokenizer"
        )


def _find_largest(column: Any) -> int:
    """Return the largest number in an Arrow array of lists, or of lists of lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    while pa.types.is_nested(column.type):
        column = pc.list_flatten(column)
    return int(pc.max(column).as_py() or 0)


def _set_value(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set `key` to `value`; dots in it lead into nested configurations. An unknown key is refused."""
    outer, _, inner = key.partition(".")
    if outer not in tree and outer not in (known := _known_keys(tree)):
        raise UsageError(f"[model.config]: {tree['model_type']} has no {outer!r}{did_you_mean(outer, known)}")
    if inner and not isinstance(tree[outer], dict):
        raise UsageError(f"[model.config]: {outer!r} of {tree['model_type']} has no parts, so no {inner!r}")
    if inner == "model_type":
        tree[outer] = {"model_type": value}  # the keys of the other type are unknown to this one
    elif inner:
        _set_value(tree[outer], inner, value)
    else:
        whole = isinstance(tree.get(outer), float) and type(value) is int  # 1 for 1.0, which a strict field refuses
        tree[outer] = float(value) if whole else value


def _known_keys(tree: Mapping[str, Any]) -> set[str]:
    from transformers import AutoConfig

    return {"num_labels", *tree, *AutoConfig.for_model(tree["model_type"]).to_dict()}


def load_aligned(recipe: Recipe, source: ModelSource) -> torch.nn.Module:
    """Load a recipe's model with all weights where torch allocates them.

    Weights of a file lie wherever the file is mapped, and math libraries round differently at other addresses. So the
    same weights would give other numbers when they are loaded from another file.
    """
    module = recipe.load_model(source)
    for parameter in module.parameters():
        if parameter.data_ptr() % ALIGNMENT:
            parameter.data = parameter.data.clone()
    return module


def _update_dependent(tree: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Update values that depend on a given value, unless they were given too."""
    if "id2label" in given and "label2id" not in given:
        tree["label2id"] = {name: number for number, name in tree["id2label"].items()}
    if "num_labels" in given and "id2label" not in given:
        tree["id2label"] = tree["label2id"] = None
    if {"num_hidden_layers", "depths", "num_stages"} & set(given):
        for name in {"layer_types", "stage_names", "out_features", "out_indices"} - set(given):
            tree.pop(name, None)  # one for each layer or stage


def _list_new_weights(report: Mapping[str, Any]) -> list[str]:
    """Return the weights that were not in the file, or had another shape there."""
    reshaped = {entry[0] for entry in report["mismatched_keys"]}
    return sorted(set(report["missing_keys"]) | reshaped)


def _warn_of_new_weights(model: Any, new: list[str], what: str) -> None:
    """Warn of new weights. Refuse if most weights are new: then hardly anything pretrained would be left."""
    total = len(model.state_dict())
    if 2 * len(new) > total:
        raise UsageError(
            f"{what}: {len(new)} of {total} weights of a {type(model).__name__} are not in the file, or have another "
            "shape there; check [model.config], or set [model].pretrained = false to start from random weights"
        )
    if new:
        shown = ", ".join(new[:4]) + (", …" if len(new) > 4 else "")
        warnings.warn(f"{what}: {len(new)} of {total} weights are new and start at random: {shown}", stacklevel=3)


@contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Turn errors of transformers into one sentence about `what`, and hide its logs."""
    try:
        with quiet_libraries("transformers", "bitsandbytes"):
            yield
    except (RecipeError, MemoryError):
        raise
    except Exception as error:  # it raises OSError, ValueError, ImportError, safetensors' and strict dataclasses' own
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UsageError(f"{what}: {' '.join(lines[:2]) or type(error).__name__}") from error
