"""Every check of the conformance kit can fail: for each there is a recipe that is broken in just that way."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrecipe.plugins.registry import Plugin, Registry
from taskrecipe.testing import recipe_checks, training_checks
from taskrecipe.testing.recipe_checks import RECIPE_CHECKS
from taskrecipe.testing.subject import Subject
from tests.support import toys


def subject(recipe: str, folder: Path) -> Subject:
    plugins = [
        *Registry.read().plugins,
        Plugin("recipes", "broken", "toys", "1", f"tests.support.toys:{recipe}"),
    ]
    return Subject("broken", {}, Registry(plugins), folder)


@pytest.mark.parametrize(
    "check", [c for c in RECIPE_CHECKS if c is not recipe_checks.importing_it_is_light], ids=lambda c: c.__name__
)
def test_a_sound_recipe_passes(check, tmp_path: Path) -> None:
    check(subject("Tag", tmp_path))


@pytest.mark.parametrize(
    ("check", "recipe", "message"),
    [
        (recipe_checks.options_are_documented, "Undocumented", "'secret' has no description"),
        (recipe_checks.importing_it_is_light, "Tag", "imports .*torch"),
        (recipe_checks.missing_columns_are_named, "Undeclared", "declares no column"),
        (training_checks.batches_hold_their_rows, "Shapeless", "'extra' has 1 entries"),
        (recipe_checks.labels_round_trip, "Mislabelled", "the model calls its classes"),
        (recipe_checks.metrics_are_as_declared, "Unreported", "'missing' is declared but not reported"),
        (recipe_checks.rows_are_evaluated_once, "MeanOfMeans", "depends on the evaluation's batch size"),
        (recipe_checks.learned_values_are_json, "Forgetful", "learned value 'labels' is not JSON"),
        (recipe_checks.predicting_needs_no_targets, "Peeking", "changes when targets are left out"),
        (recipe_checks.answers_are_json, "Speechless", "the answer to row 0 is not JSON"),
        (recipe_checks.judgments_are_json, "Opaque", "the judgment of row 0 is not JSON"),
        (recipe_checks.scores_of_rows_make_the_metric, "Flattering", "but the mean of `row_scores` is 1.0"),
        (recipe_checks.losses_of_rows_make_the_loss, "Careless", "see `row_losses`"),
        (recipe_checks.rows_can_be_predicted, "Choosy", "row 0 can't be predicted: the recipe makes"),
        (recipe_checks.examples_can_be_described, "Invisible", "must be DescribedText or DescribedImage"),
        (training_checks.accumulation_is_exact, "Unweighted", "differs by .* when the update is split"),
        (training_checks.weights_are_used_as_said, "Idle", "spare got no gradient: set `uses_all_weights = False`"),
        (training_checks.training_is_deterministic, "Restless", "two runs of the same spec differ"),
        (training_checks.resume_is_exact, "Remembering", "keeps state that is not saved"),
        (training_checks.one_batch_is_overfitted, "Unteachable", "brought the loss only from"),
        (training_checks.sample_is_learnable, "WrongWay", "never better than that: .* min is better"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_recipe_fails(check, recipe: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check(subject(recipe, tmp_path))


def test_there_is_a_broken_recipe_for_every_check() -> None:
    [mark] = [m for m in test_a_broken_recipe_fails.pytestmark if m.name == "parametrize"]
    assert {case[0] for case in mark.args[1]} == set(RECIPE_CHECKS)
    assert all(hasattr(toys, case[1]) for case in mark.args[1])
