"""Several tasks at once: one encoder, a head for each, and a mixture of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from taskrecipe import (
    PREDICT,
    Batch,
    Column,
    ComputesUpdate,
    CutsRows,
    DataError,
    Direction,
    DrawsRows,
    HasParts,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    SummarizesMetrics,
    UsageError,
    WeighsTerms,
    evaluated_splits,
    installed,
    reported_name,
)
from taskrecipe.contrib.mixture import draw_mixture
from taskrecipe.contrib.multitask_options import MEAN, OF_THE_RUN, MultitaskOptions, SubTask

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import Description, ModelSource, Spec

_ROWS = "rows."
"""What the count of a task's rows is called, before the task's name."""

_TASK_OF_ROW = ".task"
"""The key of a batch that has the number of each row's task; no task can have this name."""


class Multitask(Recipe, HasParts, CutsRows, DrawsRows, SummarizesMetrics, WeighsTerms):
    """Several recipes at once on one encoder, with a head and metrics for each.

    Every task is a recipe on text with rows of its own, from its own [task.tasks.<name>.data]; [data] has what holds
    for the run. Rows of all tasks are mixed and have the same weight, and an epoch has as many rows as all tasks
    together; `sampling` decides whose they are. Every task is evaluated under its name, as in mrpc/f1, and `mean` is
    the mean of one metric of each. The exported model holds the encoder, and a folder for each task's whole model.
    """

    Options = MultitaskOptions
    options: MultitaskOptions
    learned = ("learned_by_task",)
    uses_all_weights = False  # a batch may have no row of a task, and so no use for its head
    sample_settings: ClassVar = {
        "train.learning_rate": 1e-3,
        "train.epochs": 4,
        "train.batch_size": 32,
        "train.accumulate": 1,
    }

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.tasks = {name: _make_recipe(spec, task) for name, task in self.options.tasks.items()}
        self.names = list(self.tasks)

    # Declared ---------------------------------------------------------------------------------------

    @override
    def objections(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in self.names:
            found |= self._task_objections(name)
        if not found and len({self._direction(name) for name in self.names}) > 1:
            listed = ", ".join(f"{self._main_metric(name)} of {name} ({self._direction(name)})" for name in self.names)
            found["task.tasks"] = f"{listed} have no mean: set a 'metric' of each task that improves the same way"
        if "train" in (self.spec.evaluate.splits or []):
            found["evaluate.splits"] = "multitask evaluates one task at a time; leave 'train' out of [evaluate].splits"
        if self.spec.launch.shard != "none":
            # A process with rows of more tasks runs the encoder more often, and waits for the others each time.
            found["launch.shard"] = "multitask can't be sharded: processes may have rows of different tasks"
        return found

    @override
    def parts(self) -> dict[str, Recipe]:
        return self.tasks

    @override
    def columns(self) -> dict[str, Column]:
        """Return the task, and the columns of all tasks with the task's name before each. Rows have those of one."""
        own = {
            f"{name}.{column}": Column(found.description, required=False, target=found.target)
            for name, recipe in self.tasks.items()
            for column, found in recipe.columns().items()
        }
        return {"task": Column("the number of the task that a row belongs to"), **own}

    @override
    def splits(self) -> dict[str, str]:
        return {"train": "train", **{split: split for split, _, _ in self._evaluated()}}

    @override
    def reported(self) -> dict[str, Direction]:
        own: dict[str, Direction] = {
            reported_name(split, metric): direction
            for split, task, _ in self._evaluated()
            if split in evaluated_splits(self)
            for metric, direction in self._metrics_of(task).items()
        }
        return {MEAN: self._direction(self.names[0]), **own}

    @override
    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the mean over tasks. A task with several splits enters by the mean of them."""
        by_task: dict[str, list[float]] = {}
        for split, task, _ in self._evaluated():
            name = reported_name(split, self._main_metric(task))
            if name in metrics:
                by_task.setdefault(task, []).append(metrics[name])
        return {MEAN: float(np.mean([np.mean(values) for values in by_task.values()]))}

    # Rows -------------------------------------------------------------------------------------------

    @override
    def join(self, parts: dict[str, Splits]) -> Splits:
        """Put the training rows of all tasks one after the other, and every other split under its task's name."""
        train = [self._mark_rows(parts[name]["train"], name) for name in self.names if "train" in parts[name]]
        evaluated = {
            self._name_split(task, theirs): self._mark_rows(rows, task)
            for task, splits in parts.items()
            for theirs, rows in splits.items()
            if theirs != "train"
        }
        return {**({"train": _concatenate(train)} if train else {}), **evaluated}

    @override
    def mark_part(self, name: str, rows: Dataset) -> Dataset:
        return self._mark_rows(rows, name)

    @override
    def sample(self, folder: Path) -> Splits:
        """Every task's own sample, and a tiny model that knows the words of all."""
        from transformers import AutoTokenizer

        from taskrecipe.text import write_tiny_bert

        found = {name: recipe.sample(folder / name) for name, recipe in self.tasks.items()}
        tokenizers = [AutoTokenizer.from_pretrained(folder / name) for name in self.names]
        words = {word for one in tokenizers for word in set(one.get_vocab()) - set(one.all_special_tokens)}
        write_tiny_bert(folder, words)
        return self.join(found)

    @property
    def learned_by_task(self) -> dict[str, dict[str, Any]]:
        """What each task has learned from its training rows."""
        return {task: {name: getattr(one, name) for name in one.learned} for task, one in self.tasks.items()}

    @learned_by_task.setter
    def learned_by_task(self, values: dict[str, dict[str, Any]]) -> None:
        for task, learned in values.items():
            for name, value in learned.items():
                setattr(self.tasks[task], name, value)

    @override
    def learn(self, rows: Dataset) -> None:
        for name, recipe in self.tasks.items():
            own = self._own_rows(rows, name)
            if not len(own):
                raise DataError(f"there are no rows of task {name!r}; limit rows in its own table", split="train")
            recipe.learn(own)

    @override
    def check(self, rows: Dataset, split: str) -> None:
        for task, theirs in self._tasks_in(split):
            self.tasks[task].check(self._own_rows(rows, task), theirs)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        """Load every task's tokenizer. They have the same vocabulary, so the first one is exported."""
        for recipe in self.tasks.values():
            recipe.processor = recipe.load_processor(source)
        return self.tasks[self.names[0]].processor

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        # Rows to predict are all of one task.
        tasks = [(self.names[rows[0]["task"]], PREDICT)] if split == PREDICT else self._tasks_in(split)
        parts = [
            self._mark_rows(self.tasks[task].preprocess(self._own_rows(rows, task), theirs), task)
            for task, theirs in tasks
        ]
        return _concatenate(parts)

    @override
    def lengths(self, rows: Dataset) -> Sequence[int] | None:
        found = np.zeros(len(rows), dtype=np.int64)
        for number, name in enumerate(self.names):
            mine = np.flatnonzero(_task_numbers(rows) == number)
            lengths = self.tasks[name].lengths(self._own_rows(rows, name)) if len(mine) else []
            if lengths is None:
                return None
            found[mine] = lengths
        return found.tolist()

    @override
    def draw(self, rows: Dataset, random: np.random.Generator) -> Sequence[int] | None:
        """Return as many rows as there are. Within a task no row comes twice before all have come."""
        if self.options.sampling == "size":
            return None
        numbers = _task_numbers(rows)
        return draw_mixture(numbers, self._proportions(np.bincount(numbers, minlength=len(self.names))), random)

    @override
    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        name = self.names[row["task"]]
        return {"task": name, "row": self.tasks[name].example(_own_columns(row, name), random, training)}

    @override
    def collate(self, rows: list[Row]) -> Batch:
        """Make a batch for each task that has rows."""
        import torch

        groups = {name: [row["row"] for row in rows if row["task"] == name] for name in self.names}
        batch: Batch = {name: self.tasks[name].collate(group) for name, group in groups.items() if group}
        return {_TASK_OF_ROW: torch.tensor([self.names.index(row["task"]) for row in rows]), **batch}

    # Model ------------------------------------------------------------------------------------------

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from taskrecipe.contrib.shared_encoder import SharedEncoder

        return SharedEncoder({name: recipe.load_model(source) for name, recipe in self.tasks.items()})

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> dict[str, Any]:
        from taskrecipe import narrow_rows  # needs torch

        def run_task(name: str, models: dict[str, Any]) -> Any:
            with narrow_rows((batch[_TASK_OF_ROW] == self.names.index(name)).nonzero().flatten()):
                return self.tasks[name].forward(models[name], batch[name])

        def run(models: dict[str, Any]) -> dict[str, Any]:
            return {name: run_task(name, models) for name in self.names if name in batch}

        outputs: dict[str, Any] = model(run)
        return outputs

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        """Count the items of each task's one loss term, and its rows."""
        items = {name: self._count_items(name, batch[name]) if name in batch else 0.0 for name in self.names}
        return {**items, **{_ROWS + name: _count_rows(batch.get(name)) for name in self.names}}

    @override
    def loss(self, outputs: dict[str, Any], batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        return {name: self.tasks[name].loss(outputs[name], batch[name], training)["loss"] for name in outputs}

    @override
    def term_weights(self, counts: dict[str, float]) -> dict[str, float]:
        """Weigh the mean loss of a task by its share of the update's rows, so that all rows have the same weight."""
        total = sum(counts[_ROWS + name] for name in self.names)
        return {name: counts[_ROWS + name] / total for name in self.names}

    # Answers ----------------------------------------------------------------------------------------

    @override
    def predict(self, outputs: dict[str, Any], batch: Batch) -> Predictions:
        ((name, found),) = outputs.items()  # evaluated rows are all of one task
        return self.tasks[name].predict(found, batch[name])

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        name = self.names[rows[0]["task"]]
        return self.tasks[name].score(predictions, self._own_rows(rows, name))

    @override
    def infer(self, model: torch.nn.Module, batch: Batch) -> Predictions:
        """Predict rows of one task as its recipe does."""
        (name,) = (name for name in self.names if name in batch)

        def run(models: dict[str, Any]) -> Predictions:
            return self.tasks[name].infer(models[name], batch[name])

        found: Predictions = model(run)
        return found

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        name = self.names[row["task"]]
        return self.tasks[name].answer(prediction, _own_columns(row, name))

    @override
    def row_losses(self, outputs: dict[str, Any], batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
        ((name, found),) = outputs.items()
        return self.tasks[name].row_losses(found, batch[name])

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        name = self.names[rows[0]["task"]]
        return self.tasks[name].row_scores(predictions, self._own_rows(rows, name))

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        name = self.names[rows[0]["task"]]
        return self.tasks[name].scorer(predictions, self._own_rows(rows, name))

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        name = self.names[row["task"]]
        return self.tasks[name].judge(prediction, _own_columns(row, name))

    @override
    def owners(self, rows: Dataset) -> Sequence[int] | None:
        name = self.names[rows[0]["task"]]
        task = self.tasks[name]
        return task.owners(self._own_rows(rows, name)) if isinstance(task, CutsRows) else range(len(rows))

    @override
    def merge(self, predictions: list[Row], rows: list[Row]) -> tuple[Row, Row]:
        """Merge the parts of a row as its task does."""
        name = self.names[rows[0]["task"]]
        task = self.tasks[name]
        if not isinstance(task, CutsRows):
            return predictions[0], rows[0]
        prediction, row = task.merge(predictions, [_own_columns(part, name) for part in rows])
        return prediction, {"task": rows[0]["task"], **{f"{name}.{column}": value for column, value in row.items()}}

    @override
    def describe(self, example: Row) -> Description:
        described = self.tasks[example["task"]].describe(example["row"])
        return replace(described, facts={"task": example["task"], **described.facts})

    # One task of many -------------------------------------------------------------------------------

    def _task_objections(self, name: str) -> dict[str, str]:
        """Return the objections of one task's recipe, by their place in our spec."""
        recipe, at = self.tasks[name], f"task.tasks.{name}"
        objections = recipe.objections().items()
        found = {f"{at}.{key}" if key.split(".")[0] == "task" else key: reason for key, reason in objections}
        if isinstance(recipe, ComputesUpdate) and recipe.whole_update:
            found[f"{at}.recipe"] = f"recipe {recipe.spec.recipe!r} computes whole updates: it can't be one of several"
        if isinstance(recipe, HasParts):
            found[f"{at}.recipe"] = f"recipe {recipe.spec.recipe!r} is made of several itself; name its tasks here"
        metric, known = self.options.tasks[name].metric, self._metrics_of(name)
        if metric not in (None, *known):
            found[f"{at}.metric"] = f"[{at}].metric is {metric!r}; the task reports {', '.join(known)}"
        return found

    def _evaluated(self) -> Iterator[tuple[str, str, str]]:
        """Yield our name of each evaluated split, its task, and its name there."""
        for name in self.names:
            for split in evaluated_splits(self.tasks[name]):
                yield self._name_split(name, split), name, split

    def _name_split(self, name: str, split: str) -> str:
        """Return our name of a task's split: the task's name, if it has only this one to evaluate."""
        return name if evaluated_splits(self.tasks[name]) == [split] else f"{name}/{split}"

    def _tasks_in(self, split: str) -> list[tuple[str, str]]:
        """Return the tasks that have rows in a split, and the name of the split there."""
        if split == "train":
            return [(name, "train") for name in self.names]
        evaluated = [(task, theirs) for ours, task, theirs in self._evaluated() if ours == split]
        task, _, theirs = split.partition("/")
        return evaluated or [(task, theirs)]

    def _main_metric(self, name: str) -> str:
        """Return the metric of a task that enters the mean."""
        return self.options.tasks[name].metric or next(iter(self._metrics_of(name)))

    def _direction(self, name: str) -> Direction:
        return self._metrics_of(name)[self._main_metric(name)]

    def _metrics_of(self, name: str) -> dict[str, Direction]:
        return {**self.tasks[name].metrics(), "loss": "min"}

    def _count_items(self, name: str, inputs: Batch) -> float:
        counts = self.tasks[name].loss_counts(inputs)
        if set(counts) != {"loss"}:
            raise UsageError(f"task {name!r} has several loss terms, {', '.join(counts)}; multitask takes one a task")
        return counts["loss"]

    def _proportions(self, sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.options.temperature is not None:
            return np.asarray(sizes ** (1 / self.options.temperature))
        return np.asarray([task.weight for task in self.options.tasks.values()], dtype=np.float64)

    def _mark_rows(self, rows: Dataset, name: str) -> Dataset:
        """Return rows with the number of their task, and with its name before each column's."""
        marked = rows.rename_columns({column: f"{name}.{column}" for column in rows.column_names})
        return marked.add_column("task", np.full(len(rows), self.names.index(name)))

    def _own_rows(self, rows: Dataset, name: str) -> Dataset:
        """Return the rows of one task, with its own names of columns."""
        own = {column: column.removeprefix(f"{name}.") for column in rows.column_names if column.startswith(f"{name}.")}
        mine = np.flatnonzero(_task_numbers(rows) == self.names.index(name))
        return rows.select(mine).select_columns(list(own)).rename_columns(own)


def _make_recipe(spec: Spec, task: SubTask) -> Recipe:
    """Make the recipe of one task, with a spec that has the task's own tables."""
    recipe = installed().recipe(task.recipe)
    settings = recipe.sample_settings if spec.data.sample else {}
    options = {key.removeprefix("task."): value for key, value in settings.items() if key.startswith("task.")}
    values = {
        "recipe": task.recipe,
        "task": task.task.model_copy(update=options),
        "data": task.data.model_copy(update={key: getattr(spec.data, key) for key in OF_THE_RUN}),
        "evaluate": spec.evaluate.model_copy(update={"splits": None, "best": None}),
        "techniques": [],
    }
    return recipe(spec.model_copy(update=values))


def _task_numbers(rows: Dataset) -> np.ndarray[Any, Any]:
    """Return the number of each row's task."""
    return np.asarray(rows.select_columns("task").with_format("arrow")[:]["task"])


def _count_rows(value: Any) -> float:
    """Return the number of rows in a task's batch, in which every tensor has one entry a row."""
    while isinstance(value, dict):
        value = next(iter(value.values()))
    return 0.0 if value is None else float(len(value))


def _concatenate(parts: list[Dataset]) -> Dataset:
    from datasets import concatenate_datasets

    return concatenate_datasets(parts)


def _own_columns(row: Row, name: str) -> Row:
    return {key.removeprefix(f"{name}."): value for key, value in row.items() if key.startswith(f"{name}.")}
