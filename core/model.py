"""Loading a model and its processor: from the hub's cache, a folder, or a bare configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from taskrecipe.core.errors import UsageError

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class ModelSource:
    """Where the model and its processor come from. Only safetensors are read, and no code is ever fetched."""

    name: str | None
    """A folder, or a hub id; None where `type` says what to build."""
    type: str | None = None
    revision: str | None = None
    pretrained: bool = True
    processor: str | None = None
    config_values: dict[str, Any] = field(default_factory=dict)

    def config(self, **values: Any) -> Any:
        """The model's configuration, with `values` and then those of the spec put in."""
        from transformers import AutoConfig

        if self.name is None:
            config = AutoConfig.for_model(self.type)
        else:
            config = AutoConfig.from_pretrained(self.name, revision=self.revision, trust_remote_code=False)
        known = set(config.to_dict()) | set(config.attribute_map)
        for key in self.config_values:
            if key not in known:
                close = get_close_matches(key, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise UsageError(f"[model.config]: {config.model_type} has no {key!r}{hint}")
        for key, value in {**values, **self.config_values}.items():
            setattr(config, key, value)
        return config

    def model(self, auto_class: Any, **config_values: Any) -> Any:
        """A model of `auto_class`; heads that don't fit the configuration are made anew."""
        config = self.config(**config_values)
        if not self.has_weights:
            return auto_class.from_config(config)
        return auto_class.from_pretrained(
            self.name,
            revision=self.revision,
            config=config,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            trust_remote_code=False,
        )

    def tokenizer(self, **options: Any) -> Any:
        """The tokenizer that belongs to the model."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
            self.processor_name, revision=self._processor_revision, trust_remote_code=False, **options
        )

    def image_processor(self, **options: Any) -> Any:
        """The image processor that belongs to the model, of the kind that needs only Pillow."""
        from transformers import AutoImageProcessor

        return AutoImageProcessor.from_pretrained(
            self.processor_name,
            revision=self._processor_revision,
            trust_remote_code=False,
            backend="pil",
            **options,
        )

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to start from; a folder may hold a configuration only."""
        if not self.pretrained or self.name is None:
            return False
        folder = Path(self.name)
        return not folder.is_dir() or any(next(folder.glob(pattern), None) for pattern in WEIGHT_FILES)

    @property
    def processor_name(self) -> str:
        """Folder or hub id of the processor."""
        name = self.processor or self.name
        if name is None:
            raise UsageError(
                "[model].processor is missing: a model built from [model].type brings none of its own"
            )
        return name

    @property
    def _processor_revision(self) -> str | None:
        return None if self.processor else self.revision
