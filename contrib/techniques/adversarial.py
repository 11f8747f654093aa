"""Adversarial training: the model must also be right where its input is changed to make the loss larger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from taskrecipe import Batch, Compute, Computed, Count, Effect, Recipe, Technique, UsageError

if TYPE_CHECKING:
    import torch

    from taskrecipe import ModelSource

_SUFFIX = "_adversarial"


class Adversarial(Technique):
    """Adversarial training (FGM, PGD) on the input embeddings, for any recipe on text.

    In training, the word embeddings of each row are moved a little in the direction in which its loss grows fastest,
    and the loss there is added to the plain loss. The direction and its length are computed for each row separately,
    so a row is moved in the same way whatever batch it is in. Evaluation does not change.
    """

    changes_loss: ClassVar = True
    # The embeddings of the tiny model are short, and a move must be short compared with them.
    sample_settings: ClassVar = {"epsilon": 0.02}

    method: Literal["fgm", "pgd"] = Field(
        default="fgm", description="fgm: one step of length epsilon up the loss; pgd: several, kept within epsilon."
    )
    epsilon: float = Field(
        default=1.0, gt=0.0, le=1e4, description="How far a row's embeddings are moved: the norm over all its tokens."
    )
    steps: Count | None = Field(default=None, le=100, description="Steps of pgd; 3 if not given.")
    step_size: float | None = Field(default=None, gt=0.0, le=1e4, description="Step length of pgd; 0.3 if not given.")
    weight: float = Field(
        default=1.0, gt=0.0, le=1e4, description="Weight of the loss on moved embeddings; the plain loss has 1."
    )

    @model_validator(mode="after")
    def _steps_are_for_pgd(self) -> Adversarial:
        if self.method == "fgm" and (self.steps or self.step_size):
            raise ValueError("'steps' and 'step_size' are for method = \"pgd\"; fgm takes one step of length epsilon")
        return self

    @property
    def path(self) -> tuple[int, float]:
        """How many steps are taken up the loss, and how long each is."""
        return (1, self.epsilon) if self.method == "fgm" else (self.steps or 3, self.step_size or 0.3)

    @override
    def objections(self, recipe: Recipe) -> dict[str, str]:
        found = {}
        if recipe.spec.train.compile:
            found["train.compile"] = "adversarial changes embeddings inside the model, and a compiled model can't"
        if [technique.name for technique in recipe.spec.techniques].count(self.name) > 1:
            found["name"] = "adversarial can be used only once: its terms would have the same names"
        return found

    @override
    def build(self, recipe: Recipe, source: ModelSource) -> Effect:
        return AdversarialLoss(self, recipe)


class AdversarialLoss(Effect):
    """Adds the loss on moved embeddings, one term for each term of the recipe."""

    def __init__(self, options: Adversarial, recipe: Recipe) -> None:
        self.options, self.recipe = options, recipe

    @override
    def change_model(self, module: torch.nn.Module) -> torch.nn.Module:
        """Check that the model reads tokens."""
        from torch.nn import Embedding

        embeddings: Any = getattr(module, "get_input_embeddings", lambda: None)
        if not isinstance(embeddings(), Embedding):
            recipe = self.recipe.spec.recipe
            raise UsageError(f"adversarial is for recipes on text: the model of {recipe!r} embeds no tokens")
        return module

    @override
    def loss_counts(self, counts: dict[str, float]) -> dict[str, float]:
        return {**counts, **{name + _SUFFIX: count for name, count in counts.items()}}

    @override
    def loss(self, compute: Compute, model: torch.nn.Module, batch: Batch) -> Computed:
        from taskrecipe.text import unwrap_model

        # Only one forward pass of an update may go through the wrapper that exchanges gradients between processes.
        module = unwrap_model(model)
        with _moved(module, None) as embedded:
            plain = compute(model, batch)
        moves = self._step(plain, batch, embedded, [0.0 for _ in embedded])
        for _ in range(self.options.path[0] - 1):
            with _moved(module, moves) as embedded:
                there = compute(module, batch)
            moves = self._step(there, batch, embedded, moves)
        with _moved(module, moves):
            hard = compute(module, batch)
        added = {name + _SUFFIX: term * self.options.weight for name, term in hard.terms.items()}
        return Computed(plain.outputs, {**plain.terms, **added})

    def _step(self, computed: Computed, batch: Batch, embedded: list[Any], moves: list[Any]) -> list[Any]:
        """Go one step further up the loss, and back to within epsilon of where each row was."""
        import torch

        # Sums, not means: then the direction of a row doesn't depend on the other rows of the batch.
        counts = self.recipe.loss_counts(batch)
        sums = [torch.nan_to_num(term) * counts.get(name, 0.0) for name, term in computed.terms.items()]
        slopes = torch.autograd.grad(torch.stack(sums).sum(), embedded, retain_graph=True)
        length = self.options.path[1]
        return [
            _shorten(move + length * _normalize(slope), self.options.epsilon)
            for move, slope in zip(moves, slopes, strict=True)
        ]


@contextmanager
def _moved(module: Any, moves: list[Any] | None) -> Iterator[list[Any]]:
    """Add `moves` to the outputs of the embedding layer, call by call, and yield a list of these outputs."""
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
    """Return the norm of each row over all its tokens, in a shape that divides the rows."""
    norms: torch.Tensor = rows.flatten(1).norm(dim=1)
    return norms.reshape(-1, *[1] * (rows.ndim - 1))


def _normalize(rows: torch.Tensor) -> torch.Tensor:
    """Scale each row to norm 1; a row of zeros stays so."""
    norm = _norm(rows)
    return rows / norm.where(norm > 0, 1.0)


def _shorten(rows: torch.Tensor, radius: float) -> torch.Tensor:
    """Scale each row that is longer than `radius` down to it."""
    return rows * (radius / _norm(rows).clamp(min=radius))
