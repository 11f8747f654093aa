"""Adversarial training: a text recipe that must also get right what is made hard for it on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from taskrecipe.contrib.wrapping import Wrapping, WrappingOptions
from taskrecipe.core.errors import UsageError
from taskrecipe.core.recipe import Batch, Loss
from taskrecipe.core.spec.table import Count

if TYPE_CHECKING:
    import torch

    from taskrecipe.core.model import ModelSource

_SUFFIX = "_adversarial"


class AdversarialOptions(WrappingOptions):
    """Options of `adversarial`."""

    method: Literal["fgm", "pgd"] = Field(
        default="fgm", description="fgm: one step of length epsilon up the loss; pgd: several, kept within epsilon."
    )
    epsilon: float = Field(
        default=1.0, gt=0.0, le=1e4, description="How far a row's embeddings are moved: the norm over all its tokens."
    )
    steps: Count | None = Field(default=None, le=100, description="Steps of pgd; 3 where not given.")
    step_size: float | None = Field(
        default=None, gt=0.0, le=1e4, description="Length of a step of pgd; 0.3 where not given."
    )
    weight: float = Field(
        default=1.0, gt=0.0, le=1e4, description="What the loss on moved embeddings counts, beside 1 for the plain one."
    )

    @model_validator(mode="after")
    def _steps_are_for_pgd(self) -> AdversarialOptions:
        if self.method == "fgm" and (self.steps or self.step_size):
            raise ValueError("'steps' and 'step_size' are for method = \"pgd\"; fgm takes one step of length epsilon")
        return self

    @property
    def path(self) -> tuple[int, float]:
        """How many steps are taken up the loss, and how long each is."""
        return (1, self.epsilon) if self.method == "fgm" else (self.steps or 3, self.step_size or 0.3)


class Adversarial(Wrapping):
    """Adversarial training (FGM, PGD) on the input embeddings, around any text recipe.

    In training, each row's word embeddings are moved a little in the direction that makes its loss grow fastest,
    and the loss there is added to the plain one. The direction is found and its length set for every row by
    itself, so a row is moved alike whatever batch it is in. Evaluation, data and model are the inner recipe's.
    """

    Options = AdversarialOptions
    options: AdversarialOptions
    # The tiny model's embeddings are short, and a move must be short beside them.
    sample_settings: ClassVar = {**Wrapping.sample_settings, "task.epsilon": 0.02}

    def objections(self) -> dict[str, str]:
        """Nor can a compiled model be entered in between."""
        why = "adversarial changes embeddings in between, which [train].compile leaves no room for"
        return {**super().objections(), **({"train.compile": why} if self.spec.train.compile else {})}

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """The inner recipe's model, which must read tokens."""
        from torch.nn import Embedding

        model = self.inner.load_model(source)
        embeddings = getattr(model, "get_input_embeddings", lambda: None)()
        if not isinstance(embeddings, Embedding):
            raise UsageError(
                f"adversarial is for recipes on text: the model of {self.options.inner.recipe!r} embeds no tokens"
            )
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        """The inner recipe's weights, for the plain terms and for the adversarial ones."""
        plain = self.inner.weights(batch)
        return {**plain, **{name + _SUFFIX: weight for name, weight in plain.items()}}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """The inner loss; in training also that on moved embeddings."""
        if not model.training:
            return self.inner.loss(model, batch)
        from accelerate.utils import extract_model_from_parallel

        # Only one forward pass an update may go through what wraps the model to exchange gradients.
        module = extract_model_from_parallel(model)
        with _moved(module, None) as embedded:
            plain = self.inner.loss(model, batch)
        moves = self._step(plain, batch, embedded, [0.0 for _ in embedded])
        for _ in range(self.options.path[0] - 1):
            with _moved(module, moves) as embedded:
                there = self.inner.loss(module, batch)
            moves = self._step(there, batch, embedded, moves)
        with _moved(module, moves):
            hard = self.inner.loss(module, batch)
        added = {name + _SUFFIX: term * self.options.weight for name, term in hard.terms.items()}
        return Loss({**plain.terms, **added}, plain.outputs)

    def _step(self, loss: Loss, batch: Batch, embedded: list[Any], moves: list[Any]) -> list[Any]:
        """Go one step further up the loss, and back to within epsilon of where each row was."""
        import torch

        # Sums, not means: then a row's direction doesn't depend on the other rows of the batch.
        weights = self.inner.weights(batch)
        total = torch.stack([torch.nan_to_num(term) * weights[name] for name, term in loss.terms.items()]).sum()
        slopes = torch.autograd.grad(total, embedded, retain_graph=True)
        length = self.options.path[1]
        return [
            _within(move + length * _unit(slope), self.options.epsilon)
            for move, slope in zip(moves, slopes, strict=True)
        ]


@contextmanager
def _moved(module: Any, moves: list[Any] | None) -> Iterator[list[Any]]:
    """Add `moves` to what the embedding layer gives, call by call; the list collects what came out."""
    embedded: list[Any] = []

    def move(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        if moves is not None:
            output = output + moves[len(embedded)]
        if not output.requires_grad:  # the layer is frozen
            output = output.detach().requires_grad_()
        embedded.append(output)
        return output

    hook = module.get_input_embeddings().register_forward_hook(move)
    try:
        yield embedded
    finally:
        hook.remove()


def _norm(rows: torch.Tensor) -> torch.Tensor:
    """The norm of each row over all its tokens, shaped to divide it by."""
    norms: torch.Tensor = rows.flatten(1).norm(dim=1)
    return norms.reshape(-1, *[1] * (rows.ndim - 1))


def _unit(rows: torch.Tensor) -> torch.Tensor:
    """Each row at length 1; one without a direction stays 0."""
    norm = _norm(rows)
    return rows / norm.where(norm > 0, 1.0)


def _within(rows: torch.Tensor, radius: float) -> torch.Tensor:
    """Each row, shortened to `radius` where it is longer."""
    return rows * (radius / _norm(rows).clamp(min=radius))
