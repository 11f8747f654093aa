"""Distillation: a model learns from the labels and from the predictions of a trained teacher on the same rows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from taskrecipe import IGNORED, Batch, Compute, Computed, Effect, HubOrPath, Recipe, Technique, UsageError

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import ModelSource

_SAMPLE_TEACHER = "teacher"
_SAMPLE_UPDATES = 60


class Distillation(Technique):
    """Distillation of a teacher into the model that is trained, for any classification recipe.

    The loss in training is (1 - mix) times the recipe's own, plus mix times the divergence of the model's class
    probabilities from the teacher's. Both are softened by `temperature`, and the divergence is multiplied by its
    square, which keeps gradients of one size. `[model]` is the student. The teacher is frozen, has no dropout, and is
    not part of checkpoints. It must have the vocabulary and the label names of the student; their order may differ.
    """

    changes_loss: ClassVar = True

    teacher: HubOrPath = Field(description="Hub id or folder of a model already trained on the same task.")
    temperature: float = Field(
        default=2.0, gt=0.0, le=1000.0, description="What logits are divided by; larger is softer, for both models."
    )
    mix: float = Field(
        default=0.5, ge=0.0, le=1.0, description="Weight of the teacher's part; the labels have the rest, 1 - mix."
    )

    @override
    def models(self) -> list[ModelSource]:
        from taskrecipe import ModelSource

        return [ModelSource(self.teacher)]

    @override
    def prepare_sample(self, recipe: Recipe, rows: Any, folder: Path) -> None:
        """Train a teacher on the sample."""
        _require_classes(recipe)
        _train_teacher(recipe, rows, folder)

    @override
    def build(self, recipe: Recipe, source: ModelSource) -> Effect:
        from taskrecipe import ModelSource

        _require_classes(recipe)
        of_sample = ModelSource(str(source.processor_folder / _SAMPLE_TEACHER))
        return Teaching(self, recipe, of_sample if recipe.spec.data.sample else self.models()[0])


class Teaching(Effect):
    """Mixes the divergence from a teacher into the loss."""

    def __init__(self, options: Distillation, recipe: Recipe, source: ModelSource) -> None:
        self.options = options
        if not source.has_weights:
            raise UsageError(f"distillation: teacher {options.teacher!r} has no weights: it can't teach anything")
        self.order = self._find_classes(recipe.labels, source.config())
        self.recipe = copy.copy(recipe)  # it gets the teacher's order of labels, which the student must not
        self.recipe.processor = self.recipe.load_processor(source)
        self._require_same_vocabulary(recipe.processor, self.recipe.processor)
        self.teacher = self.recipe.load_model(source).eval().requires_grad_(False)

    @override
    def loss(self, compute: Compute, model: torch.nn.Module, batch: Batch) -> Computed:
        computed = compute(model, batch)
        logits, taught = computed.outputs.logits, self.teacher_logits(model, batch)
        if logits.shape != taught.shape or logits.shape[:-1] != batch["labels"].shape:
            raise UsageError("distillation is for recipes that predict one class for each label, as logits")
        labeled = batch["labels"] != IGNORED
        soft = _divergence(logits[labeled], taught[labeled], self.options.temperature)
        terms = {name: (1 - self.options.mix) * term for name, term in computed.terms.items()}
        terms[next(iter(terms))] += self.options.mix * soft
        return Computed(computed.outputs, terms)

    def teacher_logits(self, student: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the teacher's logits in the student's precision and in the student's order of classes."""
        import torch

        like = next(student.parameters())
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        with torch.no_grad():
            outputs = self.recipe.forward(self.teacher.to(like.device, like.dtype), inputs)
        logits: torch.Tensor = outputs.logits[..., self.order]
        return logits

    def _find_classes(self, labels: list[str], config: Any) -> list[int]:
        """Return the number that the teacher has for each of our classes."""
        theirs = [str(label).casefold() for _, label in sorted(config.id2label.items())]
        ours = [label.casefold() for label in labels]
        if sorted(theirs) != sorted(ours):
            raise UsageError(
                f"distillation: teacher {self.options.teacher!r} has the classes {', '.join(theirs)}, the data has "
                f"{', '.join(ours)}; if they mean the same, correct id2label in a copy of its config.json"
            )
        return [theirs.index(label) for label in ours]

    def _require_same_vocabulary(self, ours: Any, theirs: Any) -> None:
        if hasattr(theirs, "get_vocab") and theirs.get_vocab() != ours.get_vocab():
            raise UsageError(
                f"distillation: teacher {self.options.teacher!r} has another vocabulary than the student, "
                "so it can't read the same tokens; use a student of the teacher's family"
            )


def _require_classes(recipe: Recipe) -> None:
    if not recipe.labels:
        raise UsageError(f"distillation is for classification: recipe {recipe.spec.recipe!r} has no classes here")


def _divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean divergence of the student from the teacher, on the scale of a plain loss."""
    import torch
    from torch.nn.functional import kl_div, log_softmax

    # Half precision is too coarse for probabilities; double precision is kept.
    exact = torch.promote_types(student.dtype, torch.float32)
    ours, theirs = (log_softmax(logits.to(exact) / temperature, dim=-1) for logits in (student, teacher))
    return kl_div(ours, theirs, reduction="none", log_target=True).sum(-1).mean() * temperature**2


def _train_teacher(recipe: Recipe, rows: Dataset, folder: Path) -> None:
    """Train the sample's tiny model for a few updates, the same way every time, and write it."""
    import torch

    from taskrecipe import ModelSource

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.spec.seed)
        model: Any = recipe.load_model(ModelSource(str(folder))).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for numbers in torch.randint(len(rows), (_SAMPLE_UPDATES, 16)).tolist():
            optimizer.zero_grad()
            batch = _make_batch(recipe, rows, numbers)
            terms = recipe.loss(recipe.forward(model, batch), batch, training=True)
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.save_pretrained(folder / _SAMPLE_TEACHER)
    recipe.processor.save_pretrained(folder / _SAMPLE_TEACHER)


def _make_batch(recipe: Recipe, rows: Dataset, numbers: list[int]) -> Batch:
    import numpy as np

    random = np.random.default_rng(numbers)
    return recipe.collate([recipe.example(row, random, True) for row in rows.__getitems__(numbers)])
