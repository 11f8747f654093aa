"""Image processors: the model's own, or the usual one of its architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskrecipe.core.quiet import quiet

if TYPE_CHECKING:
    from taskrecipe.core.model import ModelSource


def image_processor(source: ModelSource, **options: Any) -> Any:
    """The image processor that comes with the model; one that is built from its type gets the type's usual one."""
    if source.processor is not None or source.name is not None:
        return source.image_processor(**options)
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    with quiet("transformers"):  # it tells of every processor that would need torchvision
        usual: Any = IMAGE_PROCESSOR_MAPPING.get(type(source.config()), {})
    if "pil" in usual:
        return usual["pil"](**options)
    return source.image_processor(**options)  # which says what is missing
