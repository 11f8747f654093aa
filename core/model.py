"""Loading a model and its processor: from the hub, a folder, or a bare configuration.

What the hub has is brought into a folder first, so that transformers reads local files only: one commit for all
of them, safetensors for weights, no code, and no network afterwards. Weights are float32 in memory, whatever they
were saved as; `[train].precision` says what to compute in.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.core.data import hub
from taskrecipe.core.errors import RecipeError, UsageError
from taskrecipe.core.quiet import quiet

if TYPE_CHECKING:
    from taskrecipe.core.spec.spec import Model


@dataclass(frozen=True)
class ModelSource:
    """Where the model and its processor come from."""

    name: str | None
    """A folder, or a hub id; None where `type` says what to build."""
    type: str | None = None
    revision: str | None = None
    pretrained: bool = True
    processor: str | None = None
    config_values: dict[str, Any] = field(default_factory=dict)
    """Values of the model's configuration to replace; dots lead into configurations within it."""

    @classmethod
    def of(cls, table: Model) -> ModelSource:
        """What `[model]` names."""
        return cls(table.name, table.type, table.revision, table.pretrained, table.processor, dict(table.config))

    def fetch(self) -> None:
        """Bring what is on the hub to this machine, now rather than when it is first used."""
        _ = self.folder, self.processor and self.processor_folder

    @cached_property
    def folder(self) -> Path | None:
        """The folder that holds the model's files, fetched from the hub if need be; None where `type` is given."""
        if self.name is None:
            return None
        if Path(self.name).is_dir():
            return Path(self.name)
        repo = hub.Repo("model", self.name, self.revision)
        return hub.model_folder(repo, "weights" if self.pretrained else "config")

    @cached_property
    def processor_folder(self) -> Path:
        """The folder that holds the tokenizer's or image processor's files."""
        if self.processor is None:
            if self.folder is None:
                raise UsageError("[model].processor is missing: a model built from [model].type brings none of its own")
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
        if hub.weight_files(self.folder, names):
            return True
        if any(name.endswith(hub.PICKLES) for name in names):
            raise UsageError(f"[model].name: {self.name!r} {hub.only_pickles(names)}")
        return False

    def config(self, **values: Any) -> Any:
        """The model's configuration, with `values` and then those of the spec put in."""
        with _explained("[model.config]" if self.config_values else self._described):
            base = self._base_config()
            tree = {**base.to_dict(), **values, "dtype": "float32"}
            # Where transformers has several classes it chooses by this list, and fails if there is none.
            tree["architectures"] = tree.get("architectures") or []
            for key, value in self.config_values.items():
                _put(tree, base.attribute_map.get(key, key), value)
            _complete(tree, {**values, **self.config_values})
            return type(base).from_dict(tree)

    def model(self, auto_class: Any, **config_values: Any) -> Any:
        """A model of `auto_class`; heads that don't fit the configuration are made anew, which is told."""
        config = self.config(**config_values)
        with _explained(self._described):
            if not self.has_weights:
                return auto_class.from_config(config)
            model, report = auto_class.from_pretrained(
                self.folder,
                config=config,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
            _tell(model, report, self._described)
        return model

    def tokenizer(self, **options: Any) -> Any:
        """The tokenizer that belongs to the model."""
        from transformers import AutoTokenizer

        with _explained(f"the tokenizer of {self._described}"):
            tokenizer = AutoTokenizer.from_pretrained(self.processor_folder, trust_remote_code=False, **options)
            if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
                raise UsageError(
                    f"{str(self.processor or self.name)!r} has no tokenizer: no vocabulary is among its files"
                )
        return tokenizer

    def image_processor(self, **options: Any) -> Any:
        """The image processor that belongs to the model, of the kind that needs only Pillow."""
        from transformers import AutoImageProcessor

        with _explained(f"the image processor of {self._described}"):
            return AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
                self.processor_folder, trust_remote_code=False, backend="pil", **options
            )

    @property
    def _described(self) -> str:
        return f"[model].type: {self.type!r}" if self.name is None else f"[model].name: {self.name!r}"

    def _base_config(self) -> Any:
        from transformers import CONFIG_MAPPING, AutoConfig

        if self.folder is not None:
            if not (self.folder / "config.json").is_file():
                raise UsageError(f"{self._described} is not a model: there is no config.json")
            return AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        if self.type is None or self.type not in CONFIG_MAPPING:
            raise UsageError(
                f"{self._described} is not an architecture that transformers knows{_hint(self.type, CONFIG_MAPPING)}"
            )
        return AutoConfig.for_model(self.type)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set `key`, whose dots lead into configurations within this one, to `value`; a key it hasn't is refused."""
    outer, _, inner = key.partition(".")
    if outer not in tree and outer not in (known := _known(tree)):
        raise UsageError(f"[model.config]: {tree['model_type']} has no {outer!r}{_hint(outer, known)}")
    if inner and not isinstance(tree[outer], dict):
        raise UsageError(f"[model.config]: {outer!r} of {tree['model_type']} has no parts, so no {inner!r}")
    if inner == "model_type":
        tree[outer] = {"model_type": value}  # what the other type had means nothing to this one
    elif inner:
        _put(tree[outer], inner, value)
    else:
        whole = isinstance(tree.get(outer), float) and type(value) is int  # 1 for 1.0, which a strict field refuses
        tree[outer] = float(value) if whole else value


def _known(tree: Mapping[str, Any]) -> set[str]:
    from transformers import AutoConfig

    return {"num_labels", *tree, *AutoConfig.for_model(tree["model_type"]).to_dict()}


def _complete(tree: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Bring in line what follows from a value that was given, unless it was given too."""
    if "id2label" in given and "label2id" not in given:
        tree["label2id"] = {name: number for number, name in tree["id2label"].items()}
    if "num_labels" in given and "id2label" not in given:
        tree["id2label"] = tree["label2id"] = None
    if "num_hidden_layers" in given and "layer_types" not in given:
        tree.pop("layer_types", None)


def _tell(model: Any, report: Mapping[str, Any], what: str) -> None:
    """Say which weights are new; refuse if most of them are, as then nothing is left of what was trained."""
    reshaped = {entry[0] for entry in report["mismatched_keys"]}
    new = sorted(set(report["missing_keys"]) | reshaped)
    total = len(model.state_dict())
    if 2 * len(new) > total:
        raise UsageError(
            f"{what}: {len(new)} of {total} weights of a {type(model).__name__} are not in the file, or have another "
            "shape there; check [model.config], or set [model].pretrained = false to start from random weights"
        )
    if new:
        shown = ", ".join(new[:4]) + (", …" if len(new) > 4 else "")
        warnings.warn(f"{what}: {len(new)} of {total} weights are new and start at random: {shown}", stacklevel=3)


def _hint(name: str | None, known: Iterable[str]) -> str:
    close = get_close_matches(name or "", list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn what transformers raises into one sentence about `what`, and keep it from chatting meanwhile."""
    try:
        with quiet("transformers"):
            yield
    except (RecipeError, MemoryError):
        raise
    except Exception as error:  # it raises OSError, ValueError, ImportError, safetensors' and strict dataclasses' own
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UsageError(f"{what}: {' '.join(lines[:2]) or type(error).__name__}") from error
