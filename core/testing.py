"""A conformance kit: one line in a plugin's tests checks everything that the loop relies on.

    from taskrecipe.testing import conformance, technique_conformance

    test_recipe = conformance("name-of-the-recipe")
    test_technique = technique_conformance("name-of-the-technique")

Pass required options of `[task]` by keyword: `conformance("glue", name="mrpc")`. Each check is a test of its own, on
the recipe's own sample data and tiny model. A technique is checked together with a recipe, by default `glue`.
Optimizers, schedules, callbacks and trackers have `optimizer_conformance` and so on; keys of theirs are keywords too.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from taskrecipe.checkpoints.nested_state import pack_state
from taskrecipe.checkpoints.store import Checkpoints
from taskrecipe.data.columns import require_columns
from taskrecipe.data.load import load_data
from taskrecipe.description import DescribedImage, DescribedText
from taskrecipe.errors import DataError
from taskrecipe.model import ModelSource
from taskrecipe.optional import HasParts
from taskrecipe.plugins.registry import Group, Registry, installed
from taskrecipe.recipe import (
    Predictions,
    Recipe,
    Row,
    Splits,
    as_json,
    reported_metrics,
    reported_name,
    target_columns,
)
from taskrecipe.run.sample_model import prepare_sample, sample_source
from taskrecipe.spec.spec import Spec
from taskrecipe.text.packs import MEMBERS
from taskrecipe.training.batches import BatchMaker, MicroBatch
from taskrecipe.training.evaluation import Evaluation, Outcome, finish
from taskrecipe.training.events import Evaluated
from taskrecipe.training.loop import Loop
from taskrecipe.training.randomness import Purpose, make_generator, seed_everything
from taskrecipe.training.setup import make_loop
from taskrecipe.training.state import OptimizerGroups, Progress
from taskrecipe.training.unused_weights import leaves_weights_unused
from taskrecipe.training.update import Update
from taskrecipe.use.scores import as_numbers, count_units, mean_of_counted, merge_rows

FEW = 15
"""Training rows of the quick checks: more than one update, and the last one short."""


class Subject:
    """The recipe under test on its sample data, with the techniques under test."""

    def __init__(
        self,
        name: str,
        task: dict[str, Any],
        registry: Registry,
        folder: Path,
        techniques: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.name, self.task, self.registry, self.folder = name, task, registry, folder
        self.techniques = [self._with_sample_settings(table) for table in techniques]

    def spec(self, **settings: Any) -> Spec:
        """Return the sample's spec with further values by dotted key; `__` stands for the dot."""
        values: dict[str, Any] = {
            "spec_version": 1,
            "recipe": self.name,
            "task": self.task,
            "data": {"sample": True},
            "train": {"epochs": 1, "learning_rate": 1e-3},
            "log": {"every": 1},
            "techniques": self.techniques,
        }
        given = {key.replace("__", "."): value for key, value in settings.items()}
        # A warmup that suits the whole sample may be longer than a quick check.
        suited = {k: v for k, v in self.recipe_class.sample_settings.items() if not k.startswith("schedule.")}
        for key, value in {**suited, **given}.items():
            table, _, name = key.partition(".")
            values[table] = {**values.get(table, {}), name: value}
        return Spec.model_validate(values, context={"registry": self.registry})

    @cached_property
    def recipe_class(self) -> type[Recipe]:
        """The class that is registered under the name."""
        return self.registry.recipe(self.name)

    @cached_property
    def raw(self) -> tuple[Recipe, Splits, ModelSource]:
        """The recipe with its processor and learned values, its rows before preprocessing, and its model's source."""
        recipe = self.recipe_class(self.spec())
        loaded = load_data(recipe.spec, recipe, self.folder / "model")
        recipe.processor = recipe.load_processor(loaded.source)
        return recipe, loaded.splits, loaded.source

    @cached_property
    def prepared(self) -> tuple[Recipe, Splits, ModelSource]:
        """The recipe, its preprocessed rows, and its model's source."""
        recipe, splits, source = self.raw
        rows = {split: recipe.preprocess(found, split) for split, found in splits.items()}
        folder = Path(str(source.folder))
        prepare_sample(recipe, rows["train"], folder)
        return recipe, rows, sample_source(folder, recipe.spec)

    @property
    def few(self) -> Splits:
        """A few rows of each split."""
        return {split: rows.select(range(min(FEW, len(rows)))) for split, rows in self.prepared[1].items()}

    def loop(self, rows: Splits, dtype: torch.dtype = torch.float32, dropout: bool = True, **settings: Any) -> Loop:
        """Make a loop whose model is the same every time."""
        recipe, source = copy.copy(self.prepared[0]), self.prepared[2]
        recipe.spec = self.spec(**settings)
        accelerator = Accelerator(cpu=True)
        seed_everything(accelerator.device, Purpose.MODEL, recipe.spec.seed)
        module = recipe.load_model(source).to(dtype)
        effects = [technique.build(recipe, source) for technique in recipe.spec.techniques]
        for effect in effects:
            module = effect.change_model(module)
        if not dropout:
            _switch_off_dropout(module)
        return make_loop(recipe, module, rows, accelerator, effects=effects)

    def _with_sample_settings(self, table: dict[str, Any]) -> dict[str, Any]:
        return {**self.registry.technique(table["name"]).sample_settings, **table}


Check = Callable[[Subject], None]


def conformance(recipe: str, /, **task: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named recipe, with `task` as its options."""
    return _make_test(CHECKS, lambda folder: Subject(recipe, task, installed(), folder))


def technique_conformance(
    technique: str, /, recipe: str = "glue", task: dict[str, Any] | None = None, **options: Any
) -> Callable[..., None]:
    """Return a test function with a case for every check of the named technique, applied to a recipe."""
    options_of_task = {"name": "mrpc"} if recipe == "glue" and task is None else task or {}
    table = {"name": technique, **options}
    return _make_test(TECHNIQUE_CHECKS, lambda folder: Subject(recipe, options_of_task, installed(), folder, [table]))


def optimizer_conformance(optimizer: str, /, learning_rate: float = 1e-3, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named optimizer, at a learning rate that suits it."""
    return _plugin_test("optimizers", optimizer, {"learning_rate": learning_rate, **options})


def schedule_conformance(schedule: str, /, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named schedule."""
    return _plugin_test("schedules", schedule, options)


def callback_conformance(callback: str, /, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named callback."""
    return _plugin_test("callbacks", callback, options)


def tracker_conformance(tracker: str, /, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named tracker."""
    return _plugin_test("trackers", tracker, options)


def _plugin_test(group: Group, name: str, options: dict[str, Any]) -> Callable[..., None]:
    from taskrecipe.testing_plugins import PLUGIN_CHECKS, PluginSubject

    return _make_test(PLUGIN_CHECKS[group], lambda folder: PluginSubject(group, name, options, installed(), folder))


def _make_test(checks: tuple[Check, ...], make_subject: Callable[[Path], Subject]) -> Callable[..., None]:
    import pytest

    shared: list[Subject] = []  # by all checks: preparing it takes longer than most of them

    @pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
    def test_plugin(check: Check, tmp_path_factory: pytest.TempPathFactory) -> None:
        if not shared:
            shared.append(make_subject(tmp_path_factory.mktemp("conformance")))
        check(shared[0])

    return test_plugin


# The checks -----------------------------------------------------------------------------------------


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


def batches_hold_their_rows(subject: Subject) -> None:
    """Every tensor of a batch has one entry a row, or packs hold every row; batches count the same loss terms."""
    loop = subject.loop(subject.few, train__batch_size=4, train__accumulate=1)
    terms = set()
    for update in islice(loop.state.updates(0), 4):
        batch = update.batches[0]
        _require_entries(batch)
        counts = batch.counts.values()
        require(all(math.isfinite(n) and n >= 0 for n in counts), f"loss_counts must be counts, not {batch.counts}")
        terms.add(frozenset(batch.counts))
    require(len(terms) == 1, f"the loss terms differ from batch to batch: {[sorted(t) for t in terms]}")


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
    metrics = _evaluate(loop)
    for name in reported_metrics(loop.objective.recipe):
        require(name in metrics, f"{name!r} is declared but not reported; reported: {', '.join(metrics)}")
    require(math.isfinite(metrics[loop.best_metric[0]]), f"{loop.best_metric[0]} is {metrics[loop.best_metric[0]]}")


def rows_are_evaluated_once(subject: Subject) -> None:
    """Metrics are the same at every batch size: no row is left out, counted twice, or seen differently."""
    numbers = []
    for batch_size in (1, 3, 64):
        loop = subject.loop(subject.few, torch.float64, evaluate__batch_size=batch_size)
        _use_double_batches(loop)
        numbers.append(_evaluate(loop))
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


def accumulation_is_exact(subject: Subject) -> None:
    """An update in several micro-batches has the gradients of one that is not split; a short one too."""
    for number in (0, FEW // 4):
        whole = _gradients(subject, 1, number)
        for parts in (2, 4):
            split = _gradients(subject, parts, number)
            for name, gradient in whole.items():
                difference = float((gradient - split[name]).abs().max())
                require(
                    difference <= 1e-11 * max(1.0, float(gradient.abs().max())),
                    f"the gradient of {name} differs by {difference:g} when the update is split; see `loss_counts`, "
                    "and `narrow_rows` if the model runs on some of a batch's rows only",
                )


def weights_are_used_as_said(subject: Subject) -> None:
    """Every update gives each trained weight a gradient, unless the recipe or a technique says otherwise."""
    loop = subject.loop(subject.few, torch.float32, train__batch_size=4, train__order="sequential")
    if leaves_weights_unused(loop.objective.recipe, loop.objective.effects):
        return
    loop.model.train()
    update = next(loop.state.updates(0))
    for effect in loop.objective.effects:
        effect.before_update(update.number, loop.state.module)
    update.compute_gradients()
    weights = loop.state.module.named_parameters()
    unused = [name for name, weight in weights if weight.requires_grad and weight.grad is None]
    require(not unused, f"{', '.join(unused[:4])} got no gradient: set `uses_all_weights = False`, or don't train them")


def training_is_deterministic(subject: Subject) -> None:
    """The same spec gives the same bits."""
    first, second = (_bits(_train(subject, 4)) for _ in range(2))
    _require_same(first, second, "two runs of the same spec differ in {}: draw randomness from `random` alone")


def resume_is_exact(subject: Subject) -> None:
    """A run that stops and is resumed from its checkpoint ends in the bits of one that doesn't stop."""
    whole = _bits(_train(subject, 4))
    stopped = _train(subject, 2)
    store = Checkpoints(subject.folder / "checkpoints", keep=1, run_id="conformance")
    checkpoint = store.commit(stopped.progress.step, stopped.state.contents(), best=None)
    resumed = subject.loop(subject.few, train__batch_size=4, train__epochs=4)
    resumed.state.restore(checkpoint)
    _take(resumed, islice(resumed.state.updates(2), 2))
    _require_same(whole, _bits(resumed), "a resumed run differs in {}: it keeps state that is not saved")


def one_batch_is_overfitted(subject: Subject) -> None:
    """A model that can't learn a few rows by heart learns nothing."""
    loop = subject.loop(subject.few, dropout=False, train__batch_size=4, train__updates=200, schedule__name="constant")
    first = next(loop.state.updates(0))
    losses = _take(loop, (_renew(first) for _ in range(100)))
    require(
        losses[-1] < losses[0] - 0.3 * abs(losses[0]),
        f"100 updates on {len(first.rows)} rows brought the loss only from {losses[0]:.4f} to {losses[-1]:.4f}",
    )


def sample_is_learnable(subject: Subject) -> None:
    """A run on the sample improves the metric that decides, in its declared direction."""
    schedule = {k: v for k, v in subject.recipe_class.sample_settings.items() if k.startswith("schedule.")}
    loop = subject.loop(subject.prepared[1], **schedule)
    name, direction = loop.best_metric
    before = _evaluate(loop)[name]
    after = []
    for event in loop.run():
        if isinstance(event, Evaluated):
            after.append(event.metrics[name])
            if after[-1] > before if direction == "max" else after[-1] < before:
                return
    raise AssertionError(
        f"{name} was {before:.4f} untrained and never better than that: {after}; {direction} is better"
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
    require(reported <= set(_evaluate(loop)), f"an evaluation must report {', '.join(sorted(reported))}")


CHECKS: tuple[Check, ...] = (
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

# What the checks are made of ------------------------------------------------------------------------


def require(condition: object, message: str) -> None:
    """Fail a check with a message."""
    if not condition:
        raise AssertionError(message)


def _require_entries(batch: MicroBatch) -> None:
    rows = len(batch.rows)
    if MEMBERS in batch.inputs:
        packed = set(batch.inputs[MEMBERS].unique().tolist()) - {-1}
        require(packed == set(range(rows)), f"the packs of {rows} rows hold the rows {sorted(packed)}")
        return
    for key, value in batch.inputs.items():
        if isinstance(value, (torch.Tensor, list)) and not (isinstance(value, torch.Tensor) and value.ndim == 0):
            require(len(value) == rows, f"{key!r} has {len(value)} entries for {rows} rows")


def require_light_import(registry: Registry, group: Group, name: str) -> None:
    """Fail if importing a plugin's module imports torch or the like."""
    target = registry.find(group, name).target.partition(":")[0]
    heavy = "{'torch', 'transformers', 'datasets', 'accelerate', 'evaluate'}"
    path = ":".join(entry for entry in sys.path if entry)
    code = f"import sys; sys.path[:0] = {path!r}.split(':'); import {target}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    require(not done.stdout.split(), f"importing {target} imports {done.stdout.strip()}: move it into methods")


def _evaluate(loop: Loop) -> dict[str, float]:
    *_, last = loop.evaluate()
    if not isinstance(last, Evaluated):
        raise AssertionError(f"an evaluation ended with {last}")
    loop.state.progress = Progress()
    return last.metrics


def _evaluate_splits(subject: Subject) -> Iterator[tuple[Recipe, Evaluation, Outcome]]:
    """Yield what an evaluation of a few rows finds, split by split, in double precision."""
    loop = subject.loop(subject.few, torch.float64)
    _use_double_batches(loop)
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


def _train(subject: Subject, updates: int) -> Loop:
    loop = subject.loop(subject.few, train__batch_size=4, train__epochs=4)
    _take(loop, islice(loop.state.updates(0), updates))
    return loop


def _take(loop: Loop, updates: Iterable[Update]) -> list[float]:
    loop.model.train()
    return [loop.take(update).loss or 0.0 for update in updates]


def _renew(update: Update) -> Update:
    fresh = copy.copy(update)
    fresh.terms = {}
    return fresh


def _bits(loop: Loop) -> dict[str, torch.Tensor]:
    optimizer = pack_state(OptimizerGroups(loop.state.optimizer, loop.state.module).state())[0]
    return {**loop.state.module.state_dict(), **{f"optimizer.{name}": value for name, value in optimizer.items()}}


def _require_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], message: str) -> None:
    for name, value in first.items():
        require(torch.equal(value, second[name]), message.format(name))


def _gradients(subject: Subject, accumulate: int, number: int) -> dict[str, torch.Tensor]:
    settings: dict[str, Any] = {
        "train__batch_size": 4,
        "train__accumulate": accumulate,
        "train__order": "sequential",
    }
    loop = subject.loop(subject.few, torch.float64, **settings)
    _use_double_batches(loop)
    loop.model.train()
    next(loop.state.updates(number)).compute_gradients()
    return {name: p.grad.clone() for name, p in loop.state.module.named_parameters() if p.grad is not None}


def _use_double_batches(loop: Loop) -> None:
    """Give batches the precision of the model."""
    recipe = loop.objective.recipe
    collate = recipe.collate

    def collate_double(rows: list[Row]) -> dict[str, Any]:
        doubled: dict[str, Any] = _to_double(collate(rows))
        return doubled

    recipe.collate = collate_double  # type: ignore[method-assign]


def _to_double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _to_double(item) for key, item in value.items()}
    return [_to_double(item) for item in value] if isinstance(value, list) else value


def _switch_off_dropout(module: torch.nn.Module) -> None:
    """Set the dropout rate to 0, wherever models keep it."""
    for part in [*module.modules(), getattr(module, "config", None)]:
        for name, value in list(vars(part).items()) if part is not None else []:
            if isinstance(value, float) and ("drop" in name or (name == "p" and "Dropout" in type(part).__name__)):
                setattr(part, name, 0.0)
