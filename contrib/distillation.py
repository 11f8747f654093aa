"""Distillation: a small model learns from the labels and from what a larger one makes of the same rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from taskrecipe.contrib.wrapping import Wrapping, WrappingOptions, suited
from taskrecipe.core.errors import UsageError
from taskrecipe.core.recipe import Batch, Loss, Recipe, Splits
from taskrecipe.core.spec.table import HubOrPath

if TYPE_CHECKING:
    import torch

    from taskrecipe.core.model import ModelSource

_SAMPLE_TEACHER = "teacher"
_SAMPLE_UPDATES = 60


class DistillationOptions(WrappingOptions):
    """Options of `distillation`."""

    teacher: HubOrPath = Field(description="Hub id or folder of a model already trained on the same task.")
    temperature: float = Field(
        default=2.0, gt=0.0, le=1000.0, description="What logits are divided by; the higher, the softer both models."
    )
    mix: float = Field(
        default=0.5, ge=0.0, le=1.0, description="What the teacher counts; the labels count the rest, 1 - mix."
    )


class Distillation(Wrapping):
    """Distillation of a teacher into a student, around any classification recipe.

    The loss in training is (1 - mix) times the inner recipe's own, plus mix times the divergence of the student's
    class probabilities from the teacher's, both softened by `temperature` (and times its square, which keeps
    gradients of one size). `[model]` is the student. The teacher is frozen, sees each row without dropout, and is no
    part of checkpoints. It must have the same vocabulary and the same label names; their order may differ.
    """

    Options = DistillationOptions
    options: DistillationOptions

    def models(self) -> list[ModelSource]:
        """The teacher, after the inner recipe's further models."""
        from taskrecipe.core.model import ModelSource

        return [*self.inner.models(), ModelSource(self.options.teacher)]

    def sample(self, folder: Path) -> Splits:
        """The inner recipe's sample, and a teacher that was trained on it."""
        splits = self.inner.sample(folder)
        _train_teacher(self._inner_anew(), splits, folder)
        return splits

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """The inner recipe's model, the student; the teacher is kept beside it."""
        if not self.labels:
            raise UsageError(f"distillation is for classification: recipe {self.options.inner.recipe!r} has no classes")
        student = self.inner.load_model(source)
        self.teacher, self.teacher_order = self._load_teacher(self._teacher_source(source))
        return student

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """The inner loss; in training, mixed with how far the student is from the teacher."""
        own = self.inner.loss(model, batch)
        if not model.training:
            return own
        labelled = batch["labels"] != -100
        soft = _divergence(
            own.outputs.logits[labelled], self._teacher_logits(model, batch)[labelled], self.options.temperature
        )
        mix = self.options.mix
        terms = {name: (1 - mix) * term for name, term in own.terms.items()}
        terms[next(iter(terms))] += mix * soft
        return Loss(terms, own.outputs)

    def _inner_anew(self) -> Recipe:
        """The inner recipe once more, which may learn of another model without telling the student's."""
        return type(self.inner)(self.spec, suited(self.options.inner, self.spec))

    def _teacher_source(self, source: ModelSource) -> ModelSource:
        from taskrecipe.core.model import ModelSource

        if self.spec.data.sample:
            return ModelSource(str(Path(str(source.folder)) / _SAMPLE_TEACHER))
        return self.models()[-1]

    def _load_teacher(self, source: ModelSource) -> tuple[torch.nn.Module, list[int]]:
        """The teacher, and where it has each of our classes."""
        name = self.options.teacher
        if not source.has_weights:
            raise UsageError(f"[task].teacher: {name!r} has no weights, so nothing to teach")
        theirs = [str(label).casefold() for _, label in sorted(source.config().id2label.items())]
        ours = [label.casefold() for label in self.labels]
        if sorted(theirs) != sorted(ours):
            raise UsageError(
                f"[task].teacher: {name!r} tells {', '.join(theirs)} apart, and the data has {', '.join(ours)}; "
                "if they are the same by other names, correct id2label in a copy of its config.json"
            )
        view = self._inner_anew()
        view.labels = self.labels
        self._require_same_vocabulary(view.load_processor(source))  # which also takes over the teacher's label order
        teacher = view.load_model(source).eval().requires_grad_(False)
        return teacher, [theirs.index(label) for label in ours]

    def _require_same_vocabulary(self, processor: Any) -> None:
        if hasattr(processor, "get_vocab") and processor.get_vocab() != self.processor.get_vocab():
            raise UsageError(
                f"[task].teacher: {self.options.teacher!r} has another vocabulary than the student, "
                "so it can't read the same tokens; take a student of the teacher's family"
            )

    def _teacher_logits(self, student: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """What the teacher makes of the batch, as exact as the student, in the student's order of classes."""
        import torch

        like = next(student.parameters())
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        with torch.no_grad():
            logits: torch.Tensor = self.teacher.to(like.device, like.dtype)(**inputs).logits
        return logits[..., self.teacher_order]


def _divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """The mean over items of the divergence of the student from the teacher, on the scale of a plain loss."""
    from torch.nn.functional import kl_div, log_softmax

    # Half precision is too coarse for probabilities; double precision is kept.
    log_probabilities = partial(log_softmax, dim=-1)
    soft = (logits.double() if logits.itemsize > 4 else logits.float() for logits in (student, teacher))
    ours, theirs = (log_probabilities(logits / temperature) for logits in soft)
    return kl_div(ours, theirs.to(ours.dtype), reduction="none", log_target=True).sum(-1).mean() * temperature**2


def _train_teacher(recipe: Recipe, splits: Splits, folder: Path) -> None:
    """Train the sample's tiny model on its rows for a moment, the same way every time, and write it."""
    import torch

    from taskrecipe.core.model import ModelSource

    source = ModelSource(str(folder))
    recipe.check(splits)
    recipe.processor = recipe.load_processor(source)
    rows = recipe.preprocess(splits["train"], "train")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.spec.seed)
        model = recipe.load_model(source).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for picked in torch.randint(len(rows), (_SAMPLE_UPDATES, 16)).tolist():
            optimizer.zero_grad()
            loss = recipe.loss(model, recipe.collate(rows.__getitems__(picked)))
            torch.stack(list(loss.terms.values())).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.save_pretrained(folder / _SAMPLE_TEACHER)  # type: ignore[operator]
    recipe.processor.save_pretrained(folder / _SAMPLE_TEACHER)
