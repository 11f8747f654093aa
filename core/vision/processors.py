"""Image processors: the model's own, or the usual one of its architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskrecipe.core.model import ModelSource


def image_processor(source: ModelSource, **options: Any) -> Any:
    """The image processor that comes with the model; one that is built from its type gets the type's usual one."""
    if source.processor is not None or source.name is not None:
        return source.image_processor(**options)
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    processors: Any = IMAGE_PROCESSOR_MAPPING
    config = type(source.config())
    if config in processors and "pil" in processors[config]:
        return processors[config]["pil"](**options)
    return source.image_processor(**options)  # which says what is missing
