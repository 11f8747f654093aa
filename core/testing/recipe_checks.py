"""The checks of a recipe: what it declares, predicts, answers and shows."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from taskrecipe.data.columns import require_columns
from taskrecipe.description import DescribedImage, DescribedText
from taskrecipe.errors import DataError
from taskrecipe.optional import HasParts
from taskrecipe.recipe import (
    Predictions,
    Recipe,
    as_json,
    reported_metrics,
    reported_name,
    target_columns,
)
from taskrecipe.testing.requirements import require, require_light_import
from taskrecipe.testing.subject import FEW, Check, Subject, evaluate_once, use_double_batches
from taskrecipe.testing.training_checks import (
    accumulation_is_exact,
    batches_hold_their_rows,
    one_batch_is_overfitted,
    resume_is_exact,
    sample_is_learnable,
    training_is_deterministic,
    weights_are_used_as_said,
)
from taskrecipe.training.batches import BatchMaker
from taskrecipe.training.evaluation import Evaluation, Outcome, finish
from taskrecipe.training.loop import Loop
from taskrecipe.training.randomness import make_generator
from taskrecipe.use.scores import as_numbers, count_units, mean_of_counted, merge_rows


def options_are_documented(subject: Subject) -> None:
    """Everything that `recipe show` shows has a description."""
    recipe = subject.recipe_class(subject.spec())
    require((inspect.getdoc(subject.recipe_class) or "").strip(), "the recipe's class has no docstring")
    for key, field in subject.recipe_class.Options.model_fields.items():
        require(field.description, f"option {key!r} has no description")
    for key, column in recipe.columns().items():
        require(column.description, f"column {key!r} has no description")


def importing_it_is_light(subject: Subject) -> None:
    """Validating and listing import the recipe's module, so it must not import torch and the like."""
    require_light_import(subject.registry, "recipes", subject.name)


def missing_columns_are_named(subject: Subject) -> None:
    """Rows without a required column are refused before training."""
    recipe, raw, _ = subject.raw
    needed = [name for name, column in recipe.columns().items() if column.required]
    require(needed, "the recipe declares no column that it needs")
    names = raw["train"].column_names
    for name in needed:
        require(name in names, f"the sample has no column {name!r}, which the recipe needs")
        try:
            require_columns([other for other in names if other != name], recipe.columns(), "train")
        except DataError as error:
            require(name in str(error), f"the error about a missing {name!r} doesn't name it")
        else:
            raise AssertionError(f"rows without {name!r} are not refused")


def labels_round_trip(subject: Subject) -> None:
    """The model's configuration has the label names, in the order of the numbers it predicts."""
    loop = subject.loop(subject.few)
    labels, config = loop.objective.recipe.labels, getattr(loop.state.module, "config", None)
    if not labels or config is None:
        return
    require(
        [config.id2label[number] for number in range(len(labels))] == labels,
        f"the model calls its classes {config.id2label}, the data {labels}",
    )
    require(
        {name: config.label2id[name] for name in labels} == {name: i for i, name in enumerate(labels)},
        f"label2id is {config.label2id}",
    )


def learned_values_are_json(subject: Subject) -> None:
    """What the recipe learns from its rows can be kept with the model and restored from there."""
    recipe = subject.prepared[0]
    for name in recipe.learned:
        value = getattr(recipe, name)
        try:
            kept = json.loads(json.dumps(value)) == value
        except TypeError:
            kept = False
        require(kept, f"learned value {name!r} is not JSON: {value!r}")


def metrics_are_as_declared(subject: Subject) -> None:
    """An evaluation reports every declared metric as a number."""
    loop = subject.loop(subject.few)
    metrics = evaluate_once(loop)
    for name in reported_metrics(loop.objective.recipe):
        require(name in metrics, f"{name!r} is declared but not reported; reported: {', '.join(metrics)}")
    require(math.isfinite(metrics[loop.best_metric[0]]), f"{loop.best_metric[0]} is {metrics[loop.best_metric[0]]}")


def rows_are_evaluated_once(subject: Subject) -> None:
    """Metrics are the same at every batch size: no row is left out, counted twice, or seen differently."""
    numbers = []
    for batch_size in (1, 3, 64):
        loop = subject.loop(subject.few, torch.float64, evaluate__batch_size=batch_size)
        use_double_batches(loop)
        numbers.append(evaluate_once(loop))
    for name, value in numbers[0].items():
        for other in numbers[1:]:
            same = math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-12) or math.isnan(value)
            require(same, f"{name} depends on the evaluation's batch size: {value} or {other[name]}")


def predicting_needs_no_targets(subject: Subject) -> None:
    """Rows without their target columns get the predictions of rows with them."""
    loop = subject.loop(subject.few)
    recipe, raw, _ = subject.raw
    for evaluation in loop.evaluations:
        rows = raw[evaluation.split]
        bare = rows.remove_columns([name for name in target_columns(recipe) if name in rows.column_names])
        recipe.check(bare, evaluation.split)
        bare = recipe.preprocess(bare, evaluation.split)
        whole = subject.prepared[1][evaluation.split]
        require(len(bare) == len(whole), f"{len(whole)} rows with targets become {len(bare)} without")
        some = range(min(FEW, len(whole)))
        with_targets, without = (
            _predict(loop, evaluation, whole.select(some), True),
            _predict(loop, evaluation, bare.select(some), False),
        )
        require(with_targets.keys() == without.keys(), f"predictions are {list(with_targets)} or {list(without)}")
        for name in with_targets:
            for row, (one, other) in enumerate(zip(with_targets[name], without[name], strict=True)):
                require(_same(one, other), f"prediction {name!r} of row {row} changes when targets are left out")


def answers_are_json(subject: Subject) -> None:
    """What a person reads of a prediction can be written as JSON."""
    loop = subject.loop(subject.few)
    for evaluation in loop.evaluations:
        predictions = _predict(loop, evaluation, evaluation.rows, True)
        require(predictions, "`predict` returns nothing: there is nothing to answer")
        for number in range(len(evaluation.rows)):
            prediction = {name: values[number] for name, values in predictions.items()}
            answer = loop.objective.recipe.answer(prediction, evaluation.rows[number])
            try:
                json.dumps(answer)
            except TypeError as error:
                raise AssertionError(f"the answer to row {number} is not JSON: {error}") from None


def judgments_are_json(subject: Subject) -> None:
    """What is said about each evaluated row can be written as JSON, and a class that is right is called correct."""
    for recipe, evaluation, outcome in _evaluate_splits(subject):
        for number, (prediction, row) in enumerate(merge_rows(recipe, outcome.predictions, evaluation.rows)):
            judged = recipe.judge(prediction, row)
            try:
                json.dumps([judged.reference, judged.confidence, judged.correct, judged.loss], allow_nan=False)
            except (TypeError, ValueError) as error:
                raise AssertionError(f"the judgment of row {number} is not JSON: {error}") from None
            sure = judged.confidence
            require(sure is None or 0 <= sure <= 1.000001, f"the confidence of row {number} is {sure}")


def scores_of_rows_make_the_metric(subject: Subject) -> None:
    """The mean of a metric's values over rows is the metric, and a scorer of all rows gives what `score` gives."""
    for recipe, evaluation, outcome in _evaluate_splits(subject):
        prefix = reported_name(evaluation.split, "")
        reported = {name.removeprefix(prefix): value for name, value in outcome.metrics.items()}
        means = {
            name: mean_of_counted(as_numbers(values))
            for name, values in recipe.row_scores(outcome.predictions, evaluation.rows).items()
        }
        units = np.arange(count_units(recipe, evaluation.rows))
        scored = recipe.scorer(outcome.predictions, evaluation.rows)(units)
        for source, numbers in (("the mean of `row_scores`", means), ("`scorer` of all rows", scored)):
            for name in numbers.keys() & reported.keys():
                same = _is_close(numbers[name], reported[name])
                require(same, f"{name} is {reported[name]}, but {source} is {numbers[name]}")


def losses_of_rows_make_the_loss(subject: Subject) -> None:
    """The losses of all rows together are the evaluated loss, where rows have a loss of their own."""
    for _, evaluation, outcome in _evaluate_splits(subject):
        if outcome.row_losses is None:
            continue
        mean = float(outcome.row_losses.sums.sum() / outcome.row_losses.counts.sum())
        loss = outcome.metrics[reported_name(evaluation.split, "loss")]
        require(_is_close(mean, loss), f"the loss is {loss}, but that of all rows together is {mean}; see `row_losses`")


def rows_can_be_predicted(subject: Subject) -> None:
    """`recipe predict` gives one answer for each row without targets, and images are images."""
    from taskrecipe.use.predictor import Predictor, Wanted
    from taskrecipe.use.records import as_records

    loop, (_, raw, _) = subject.loop(subject.few), subject.raw
    recipe = loop.objective.recipe
    if isinstance(recipe, HasParts):  # each part is a recipe of its own, and is checked as such
        return
    loop.model.eval()
    predictor = Predictor(recipe, loop.model, loop.accelerator, Wanted(images=True))
    for evaluation in loop.evaluations:
        rows = raw[evaluation.split].select(range(min(FEW, len(raw[evaluation.split]))))
        for number, outcome in enumerate(predictor.predict(list(as_records(rows)))):
            require(outcome.problem is None, f"row {number} can't be predicted: {outcome.problem}")
            for name, image in outcome.images.items():
                require(hasattr(image, "save"), f"the image {name!r} of row {number} is a {type(image).__name__}")


def examples_can_be_described(subject: Subject) -> None:
    """An example can be shown as text or as an image."""
    recipe, _, _ = subject.prepared
    for split, rows in subject.few.items():
        maker = BatchMaker(recipe, rows, training=split == "train")
        for number, row in enumerate(rows.__getitems__([0, 1])):
            random = make_generator(maker.purpose, recipe.spec.seed, 0, number)
            described = recipe.describe(recipe.example(row, random, maker.training))
            shown = isinstance(described, (DescribedText, DescribedImage))
            require(shown, f"`describe` gives a {type(described).__name__}: it must be DescribedText or DescribedImage")


RECIPE_CHECKS: tuple[Check, ...] = (
    options_are_documented,
    importing_it_is_light,
    missing_columns_are_named,
    batches_hold_their_rows,
    labels_round_trip,
    learned_values_are_json,
    metrics_are_as_declared,
    rows_are_evaluated_once,
    predicting_needs_no_targets,
    answers_are_json,
    judgments_are_json,
    scores_of_rows_make_the_metric,
    losses_of_rows_make_the_loss,
    rows_can_be_predicted,
    examples_can_be_described,
    accumulation_is_exact,
    weights_are_used_as_said,
    training_is_deterministic,
    resume_is_exact,
    one_batch_is_overfitted,
    sample_is_learnable,
)


def _evaluate_splits(subject: Subject) -> Iterator[tuple[Recipe, Evaluation, Outcome]]:
    """Yield what an evaluation of a few rows finds, split by split, in double precision."""
    loop = subject.loop(subject.few, torch.float64)
    use_double_batches(loop)
    for evaluation in loop.evaluations:
        yield loop.objective.recipe, evaluation, finish(evaluation.run(loop.model))


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _predict(loop: Loop, evaluation: Evaluation, rows: Any, has_targets: bool) -> Predictions:
    recipe, size = loop.objective.recipe, evaluation.batch_size
    bare = Evaluation(recipe, evaluation.split, rows, size, 0, loop.accelerator, has_targets)
    return finish(bare.predict(loop.model))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    return bool(as_json(one) == as_json(other))
