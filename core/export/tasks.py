"""What the hub calls the task of a model, and whether transformers has a pipeline for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task of the hub."""

    tag: str
    """Its name on the hub."""
    kinds: tuple[str, ...]
    """What the lists of its model classes are called in transformers."""
    has_pipeline: bool = True
    """Whether transformers has a pipeline that loads such a model."""
    has_script: bool = True
    """Whether there is a predict.py for such a model as ONNX."""


TASKS = (
    Task("text-classification", ("SEQUENCE_CLASSIFICATION",)),
    Task("token-classification", ("TOKEN_CLASSIFICATION",)),
    # Before the next one, whose list has BART's class for whole texts too.
    Task("text2text-generation", ("SEQ_TO_SEQ_CAUSAL_LM",), has_pipeline=False, has_script=False),
    Task("fill-mask", ("MASKED_LM",)),
    Task("text-generation", ("CAUSAL_LM",)),
    Task("image-classification", ("IMAGE_CLASSIFICATION",)),
    Task("image-segmentation", ("SEMANTIC_SEGMENTATION",)),
    Task("image-segmentation", ("UNIVERSAL_SEGMENTATION",), has_pipeline=False, has_script=False),
    Task("object-detection", ("OBJECT_DETECTION",)),
    Task("question-answering", ("QUESTION_ANSWERING",), has_pipeline=False),
    Task("multiple-choice", ("MULTIPLE_CHOICE",), has_pipeline=False),
)
"""The first task whose lists have a model's class is the model's task."""


def find_task(architecture: str | None) -> Task | None:
    """Return the task of this class of model; None if transformers lists it nowhere."""
    from transformers.models.auto import modeling_auto

    for task in TASKS:
        lists = [getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES", {}) for kind in task.kinds]
        if any(architecture in _as_tuple(names) for found in lists for names in found.values()):
            return task
    return None


def find_pipeline(architecture: str | None) -> str | None:
    """Return the pipeline of transformers that can load this class of model; None if there is none."""
    task = find_task(architecture)
    return task.tag if task and task.has_pipeline else None


def _as_tuple(names: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
