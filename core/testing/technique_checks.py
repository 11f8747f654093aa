"""The checks of a technique, applied to a recipe."""

from __future__ import annotations

import inspect

from taskrecipe.recipe import reported_metrics
from taskrecipe.testing.requirements import require, require_light_import
from taskrecipe.testing.subject import Check, Subject, evaluate_once
from taskrecipe.testing.training_checks import (
    accumulation_is_exact,
    batches_hold_their_rows,
    resume_is_exact,
    sample_is_learnable,
    training_is_deterministic,
    weights_are_used_as_said,
)


def technique_is_documented(subject: Subject) -> None:
    """Everything that `recipe show` shows has a description."""
    for table in subject.techniques:
        technique = subject.registry.technique(table["name"])
        require((inspect.getdoc(technique) or "").strip(), "the technique's class has no docstring")
        for key, field in technique.model_fields.items():
            require(field.description, f"key {key!r} has no description")


def importing_the_technique_is_light(subject: Subject) -> None:
    """Validating and listing import the technique's module, so it must not import torch and the like."""
    for table in subject.techniques:
        require_light_import(subject.registry, "techniques", table["name"])


def technique_leaves_evaluation_alone(subject: Subject) -> None:
    """The loss that is evaluated is the recipe's own, with the same terms and metrics."""
    loop = subject.loop(subject.few)
    reported = set(reported_metrics(loop.objective.recipe))
    require(reported <= set(evaluate_once(loop)), f"an evaluation must report {', '.join(sorted(reported))}")


TECHNIQUE_CHECKS: tuple[Check, ...] = (
    technique_is_documented,
    importing_the_technique_is_light,
    technique_leaves_evaluation_alone,
    batches_hold_their_rows,
    accumulation_is_exact,
    weights_are_used_as_said,
    training_is_deterministic,
    resume_is_exact,
    sample_is_learnable,
)
