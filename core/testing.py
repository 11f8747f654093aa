"""A conformance kit for recipes: one line in a plugin's tests holds it to everything the loop relies on.

    from taskrecipe.core.testing import conformance

    test_recipe = conformance("name-of-the-recipe")

Required options of `[task]` are passed by keyword: `conformance("glue", name="mrpc")`. Each check is a test of its
own, on the recipe's own sample data and tiny model.
"""

from __future__ import annotations

import copy
import inspect
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.core.checkpoints.state import pack, unpack
from taskrecipe.core.data.columns import require
from taskrecipe.core.data.load import load
from taskrecipe.core.errors import DataError
from taskrecipe.core.recipe import Recipe, Splits, reported_metrics
from taskrecipe.core.registry import Registry, installed
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.training.assembly import assemble
from taskrecipe.core.training.events import Evaluated
from taskrecipe.core.training.finite import FiniteGuard
from taskrecipe.core.training.loop import Loop
from taskrecipe.core.training.meters import Meters
from taskrecipe.core.training.progress import Progress
from taskrecipe.core.training.randomness import Purpose, seed_everything
from taskrecipe.core.training.update import Update

FEW = 15
"""Training rows of the quick checks: more than one update, and the last one short."""


class Subject:
    """The recipe under test, on its sample data."""

    def __init__(self, name: str, task: dict[str, Any], registry: Registry, folder: Path) -> None:
        self.name, self.task, self.registry = name, task, registry
        self.folder = folder

    def spec(self, **settings: Any) -> Spec:
        """The sample's spec, with values by dotted key on top; `__` stands for the dot."""
        values: dict[str, Any] = {
            "spec_version": 1,
            "recipe": self.name,
            "task": self.task,
            "model": {"name": "none"},
            "data": {"sample": True},
            "train": {"epochs": 1, "learning_rate": 1e-3},
            "log": {"every": 1},
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
    def prepared(self) -> tuple[Recipe, Splits, Any]:
        """The recipe with its processor, its preprocessed rows, and where its model comes from."""
        recipe = self.recipe_class(self.spec())
        loaded = load(recipe.spec, recipe, self.folder)
        recipe.processor = recipe.load_processor(loaded.source)
        rows = {split: recipe.preprocess(found, split) for split, found in loaded.splits.items()}
        return recipe, rows, loaded.source

    @property
    def few(self) -> Splits:
        """A few rows of each split."""
        return {split: rows.select(range(min(FEW, len(rows)))) for split, rows in self.prepared[1].items()}

    def loop(self, rows: Splits, dtype: torch.dtype = torch.float32, dropout: bool = True, **settings: Any) -> Loop:
        """A loop whose model is the same every time."""
        recipe, source = copy.copy(self.prepared[0]), self.prepared[2]
        recipe.spec = self.spec(**settings)
        accelerator = Accelerator(cpu=True)
        seed_everything(accelerator.device, Purpose.MODEL, recipe.spec.seed)
        module = recipe.load_model(source).to(dtype)
        if not dropout:
            _drop_nothing(module)
        return assemble(recipe, module, rows, accelerator)


def conformance(recipe: str, /, **task: Any) -> Callable[..., None]:
    """A test function with a case for every check of the recipe of that name, with `task` as its options."""
    import pytest

    shared: list[Subject] = []  # by all the checks: preparing it takes longer than most of them

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_recipe(check: Callable[[Subject], None], tmp_path_factory: pytest.TempPathFactory) -> None:
        if not shared:
            shared.append(Subject(recipe, task, installed(), tmp_path_factory.mktemp("conformance")))
        check(shared[0])

    return test_recipe


# The checks -----------------------------------------------------------------------------------------


def options_are_documented(subject: Subject) -> None:
    """Everything that `recipe show` shows has words to go with it."""
    recipe = subject.recipe_class(subject.spec())
    _require((inspect.getdoc(subject.recipe_class) or "").strip(), "the recipe's class has no docstring")
    for key, field in subject.recipe_class.Options.model_fields.items():
        _require(field.description, f"option {key!r} has no description")
    for key, column in recipe.columns().items():
        _require(column.description, f"column {key!r} has no description")


def importing_it_is_light(subject: Subject) -> None:
    """Validating and listing import the recipe's module, which therefore must not import torch and its kind."""
    target = subject.registry.find("recipes", subject.name).target.partition(":")[0]
    heavy = "{'torch', 'transformers', 'datasets', 'accelerate', 'evaluate'}"
    path = ":".join(entry for entry in sys.path if entry)
    code = f"import sys; sys.path[:0] = {path!r}.split(':'); import {target}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _require(not done.stdout.split(), f"importing {target} imports {done.stdout.strip()}: move it into methods")


def missing_columns_are_named(subject: Subject) -> None:
    """Rows without a column that is needed are refused before anything is trained on them."""
    recipe = subject.recipe_class(subject.spec())
    raw = load(recipe.spec, recipe, subject.folder).splits["train"]
    needed = [name for name, column in recipe.columns().items() if column.required]
    _require(needed, "the recipe declares no column that it needs")
    for name in needed:
        _require(name in raw.column_names, f"the sample has no column {name!r}, which the recipe needs")
        try:
            require([other for other in raw.column_names if other != name], recipe.columns(), "train")
        except DataError as error:
            _require(name in str(error), f"the error about a missing {name!r} doesn't name it")
        else:
            raise AssertionError(f"rows without {name!r} are not refused")


def batches_hold_their_rows(subject: Subject) -> None:
    """Every tensor of a batch has one entry a row, and every batch weighs the same terms."""
    loop = subject.loop(subject.few, train__batch_size=4, train__accumulate=1)
    terms = set()
    for update in islice(loop.updates(0), 4):
        batch = update.batches[0]
        for key, value in batch.inputs.items():
            if isinstance(value, (torch.Tensor, list)) and not (isinstance(value, torch.Tensor) and value.ndim == 0):
                _require(len(value) == len(batch.rows), f"{key!r} has {len(value)} entries for {len(batch.rows)} rows")
        weights = batch.weights.values()
        _require(all(math.isfinite(w) and w >= 0 for w in weights), f"weights must be counts, not {batch.weights}")
        terms.add(frozenset(batch.weights))
    _require(len(terms) == 1, f"the loss terms differ from batch to batch: {[sorted(t) for t in terms]}")


def labels_round_trip(subject: Subject) -> None:
    """The model's configuration has the label names, in the order of the numbers it predicts."""
    loop = subject.loop(subject.few)
    labels, config = loop.recipe.labels, getattr(loop.module, "config", None)
    if not labels or config is None:
        return
    _require(
        [config.id2label[number] for number in range(len(labels))] == labels,
        f"the model calls its classes {config.id2label}, the data {labels}",
    )
    _require(
        {name: config.label2id[name] for name in labels} == {name: i for i, name in enumerate(labels)},
        f"label2id is {config.label2id}",
    )


def metrics_are_as_declared(subject: Subject) -> None:
    """An evaluation reports every metric that was declared, as a number."""
    loop = subject.loop(subject.few)
    metrics = _evaluated(loop)
    for name in reported_metrics(loop.recipe):
        _require(name in metrics, f"{name!r} is declared but not reported; reported: {', '.join(metrics)}")
    _require(math.isfinite(metrics[loop.best_metric[0]]), f"{loop.best_metric[0]} is {metrics[loop.best_metric[0]]}")


def rows_are_evaluated_once(subject: Subject) -> None:
    """The same numbers at every batch size: no row is left out, counted twice, or seen differently."""
    numbers = []
    for batch_size in (1, 3, 64):
        loop = subject.loop(subject.few, torch.float64, evaluate__batch_size=batch_size)
        _in_double(loop)
        numbers.append(_evaluated(loop))
    for name, value in numbers[0].items():
        for other in numbers[1:]:
            same = math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-12) or math.isnan(value)
            _require(same, f"{name} depends on the evaluation's batch size: {value} or {other[name]}")


def accumulation_is_exact(subject: Subject) -> None:
    """An update in several micro-batches has the gradients of one that is not split, a short one too."""
    for number in (0, FEW // 4):
        whole = _gradients(subject, 1, number)
        for parts in (2, 4):
            split = _gradients(subject, parts, number)
            for name, gradient in whole.items():
                difference = float((gradient - split[name]).abs().max())
                _require(
                    difference <= 1e-11 * max(1.0, float(gradient.abs().max())),
                    f"the gradient of {name} differs by {difference:g} when the update is split; see `weights`",
                )


def training_is_deterministic(subject: Subject) -> None:
    """The same spec gives the same bits."""
    first, second = (_state(_trained(subject, 4)) for _ in range(2))
    _require_same(first, second, "two runs of the same spec differ in {}: draw randomness from `random` alone")


def resume_is_exact(subject: Subject) -> None:
    """A run that stops and goes on ends in the bits of one that doesn't stop."""
    whole = _state(_trained(subject, 4))
    stopped = _trained(subject, 2)
    resumed = subject.loop(subject.few, train__batch_size=4, train__epochs=4)
    resumed.module.load_state_dict(stopped.module.state_dict())
    resumed.optimizer.load_state_dict(unpack(*pack(stopped.optimizer.state_dict())))
    resumed.progress = Progress.from_json(stopped.progress.to_json())
    _take(resumed, islice(resumed.updates(2), 2))
    _require_same(whole, _state(resumed), "a resumed run differs in {}: the recipe keeps state that is not saved")


def one_batch_is_overfitted(subject: Subject) -> None:
    """A model that can't learn a few rows by heart learns nothing."""
    loop = subject.loop(subject.few, dropout=False, train__batch_size=4, train__updates=200, schedule__name="constant")
    first = next(loop.updates(0))
    losses = list(_take(loop, (_again(first) for _ in range(100))))
    _require(
        losses[-1] < losses[0] - 0.3 * abs(losses[0]),
        f"100 updates on {len(first.rows)} rows brought the loss only from {losses[0]:.4f} to {losses[-1]:.4f}",
    )


def sample_is_learnable(subject: Subject) -> None:
    """A run on the sample gets better, by the metric that decides and in its declared direction."""
    schedule = {k: v for k, v in subject.recipe_class.sample_settings.items() if k.startswith("schedule.")}
    loop = subject.loop(subject.prepared[1], **schedule)
    name, direction = loop.best_metric
    before = _evaluated(loop)[name]
    after = []
    for event in loop.run():
        if isinstance(event, Evaluated):
            after.append(event.metrics[name])
            if after[-1] > before if direction == "max" else after[-1] < before:
                return
    raise AssertionError(
        f"{name} was {before:.4f} untrained and never better than that: {after}; {direction} is better"
    )


CHECKS = (
    options_are_documented,
    importing_it_is_light,
    missing_columns_are_named,
    batches_hold_their_rows,
    labels_round_trip,
    metrics_are_as_declared,
    rows_are_evaluated_once,
    accumulation_is_exact,
    training_is_deterministic,
    resume_is_exact,
    one_batch_is_overfitted,
    sample_is_learnable,
)

# What checks are made of ----------------------------------------------------------------------------


def _require(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _evaluated(loop: Loop) -> dict[str, float]:
    *_, last = loop._evaluate()
    if not isinstance(last, Evaluated):
        raise AssertionError(f"an evaluation ended with {last}")
    loop.progress = Progress()
    return last.metrics


def _trained(subject: Subject, updates: int) -> Loop:
    loop = subject.loop(subject.few, train__batch_size=4, train__epochs=4)
    list(_take(loop, islice(loop.updates(0), updates)))
    return loop


def _take(loop: Loop, updates: Iterator[Update]) -> list[float]:
    loop.model.train()
    meters, guard = Meters(loop.accelerator.device), FiniteGuard(loop.optimizer)
    return [loop.take(update, meters, guard).loss or 0.0 for update in updates]


def _again(update: Update) -> Update:
    fresh = copy.copy(update)
    fresh.terms = {}
    return fresh


def _state(loop: Loop) -> dict[str, torch.Tensor]:
    return {
        **loop.module.state_dict(),
        **{f"optimizer.{k}": v for k, v in pack(loop.optimizer.state_dict())[0].items()},
    }


def _require_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], message: str) -> None:
    for name, value in first.items():
        _require(torch.equal(value, second[name]), message.format(name))


def _gradients(subject: Subject, accumulate: int, number: int) -> dict[str, torch.Tensor]:
    settings = {"train__batch_size": 4, "train__accumulate": accumulate, "train__order": "sequential"}
    loop = subject.loop(subject.few, torch.float64, dropout=False, **settings)
    _in_double(loop)
    loop.model.train()
    loop.recipe.backward(loop.model, next(loop.updates(number)))
    return {name: p.grad.clone() for name, p in loop.module.named_parameters() if p.grad is not None}


def _in_double(loop: Loop) -> None:
    """Let batches have the precision of the model."""
    collate = loop.recipe.collate
    loop.recipe.collate = lambda rows: _doubled(collate(rows))  # type: ignore[method-assign]


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _doubled(item) for key, item in value.items()}
    return [_doubled(item) for item in value] if isinstance(value, list) else value


def _drop_nothing(module: torch.nn.Module) -> None:
    """Switch off dropout, wherever models keep its rate."""
    for part in [*module.modules(), getattr(module, "config", None)]:
        for name, value in list(vars(part).items()) if part is not None else []:
            if isinstance(value, float) and ("drop" in name or (name == "p" and "Dropout" in type(part).__name__)):
                setattr(part, name, 0.0)
