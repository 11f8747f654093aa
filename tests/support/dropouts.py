"""Recipes on their samples with every dropout of their models on, and what their gradients are."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from taskrecipe.plugins.registry import installed
from taskrecipe.testing.subject import Subject, use_double_batches

GLUE = {"recipe": "glue", "data": {"path": "glue", "name": "mrpc"}}

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "glue": ("glue", {"name": "mrpc"}),
    "mlm": ("mlm", {}),
    "clm": ("clm", {}),
    "clm documents": ("clm", {"rows": "documents"}),
    "clm packs": ("clm", {"rows": "packs"}),
    "swag": ("swag", {}),
    "mim": ("mim", {}),
    "detection": ("detection", {}),
    "token_classification": ("token_classification", {}),
    "question_answering": ("question_answering", {}),
    "seq2seq": ("seq2seq", {}),
    "two_tower": ("two_tower", {}),
    "self-pairs": ("two_tower", {"self_pairs": True}),
    "multitask": (
        "multitask",
        {"tasks": {name: {"recipe": "glue", "task": {"name": name}, "data": {}} for name in ("cola", "mrpc")}},
    ),
    "image_classification": ("image_classification", {}),
    "semantic_segmentation": ("semantic_segmentation", {"labels": ["ground", "circle", "square", "triangle"]}),
}

_FOLDER = tempfile.TemporaryDirectory(prefix="dropouts-")


@cache
def subject(case: str) -> Subject:
    """The recipe of a case on its sample."""
    name, task = TASKS[case]
    return Subject(name, task, installed(), Path(tempfile.mkdtemp(dir=_FOLDER.name)))


def switch_on(module: torch.nn.Module, rate: float = 0.3) -> None:
    """Set every dropout rate of a model, wherever it is kept."""
    changed = 0
    for part in [*module.modules(), *(part.config for part in module.modules() if hasattr(part, "config"))]:
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and ("drop" in name or (name == "p" and "Dropout" in type(part).__name__)):
                setattr(part, name, rate)
                changed += 1
    assert changed


def make_loop(case: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    """A loop over a few rows of a case, with dropout and in the precision of `dtype`."""
    settings = {"train__batch_size": 8, "train__order": "sequential", "train__accumulate": 1, **settings}
    one = subject(case)
    rows = one.prepared[1]
    few = {split: found.select(range(min(16, len(found)))) for split, found in rows.items()}
    if case == "multitask":  # rows of both tasks in every update
        few["train"] = rows["train"].select([*range(8), *range(len(rows["train"]) - 8, len(rows["train"]))][::2])
    loop = one.loop(few, dtype, **settings)
    switch_on(loop.state.module)
    if dtype == torch.float64:
        use_double_batches(loop)
    loop.model.train()
    return loop


def gradients(loop: Any, number: int = 0) -> dict[str, torch.Tensor]:
    """The gradients of one update by parameter."""
    loop.state.optimizer.zero_grad()
    next(loop.state.updates(number)).compute_gradients()
    return {name: p.grad.clone() for name, p in loop.state.module.named_parameters() if p.grad is not None}


def difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The largest difference of two gradients, relative to the first one's norm if that is over 1."""
    assert first.keys() == second.keys()
    scale = max(1.0, float(torch.stack([value.norm() for value in first.values()]).norm()))
    return max(float((first[name] - second[name]).abs().max()) for name in first) / scale
