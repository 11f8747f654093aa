"""Several tasks at once: one encoder, a head for each, and a mixture of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from taskrecipe.contrib.wrapping import Wrapping, chosen, objections_of, suited, wrappable
from taskrecipe.core.errors import DataError, UsageError
from taskrecipe.core.recipe import Batch, Column, Direction, Loss, Recipe, Row, Splits, evaluated_splits, reported_name
from taskrecipe.core.registry import installed
from taskrecipe.core.spec.spec import Data, RecipeChoice
from taskrecipe.core.spec.table import TaskOptions, Text

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.spec.spec import Spec
    from taskrecipe.core.training.update import Update

_OF_THE_RUN = ("streaming", "workers", "offline", "sample")
"""Keys of [data] that hold for the run, not for a task."""

_MEAN = "mean"
_TAKEN = {"train", "validation", _MEAN}


class SubTask(RecipeChoice):
    """One task: a recipe and its options, and where its rows come from."""

    data: Data = Field(default=Data(), description="Where the task's rows come from; the keys are those of [data].")
    weight: float | None = Field(
        default=None, gt=0.0, le=1e6, description='Share of the rows it has, beside other tasks; sampling = "weights".'
    )
    metric: Text | None = Field(
        default=None, description="The metric that enters the mean over tasks; by default the recipe's first."
    )

    @model_validator(mode="after")
    def _data_is_its_own(self) -> SubTask:
        for key in _OF_THE_RUN:
            if getattr(self.data, key) != Data.model_fields[key].default:
                raise ValueError(f"{key!r} holds for all tasks: it belongs in [data]")
        return self


def _unwrapped(task: SubTask, info: ValidationInfo) -> SubTask:
    if issubclass(chosen(task, info), Wrapping):
        raise ValueError(
            f"recipe {task.recipe!r} wraps another, so it can't be one of several tasks; name the inner one"
        )
    return task


TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class MultitaskOptions(TaskOptions):
    """Options of `multitask`."""

    tasks: dict[TaskName, Annotated[SubTask, AfterValidator(_unwrapped), AfterValidator(wrappable)]] = Field(
        min_length=2, max_length=64, description="The tasks by name, each a recipe with its options and its data."
    )
    sampling: Literal["size", "temperature", "weights"] = Field(
        default="size",
        description="An epoch's rows: each once; or by size to the power 1 / temperature; or by the tasks' weights.",
    )
    temperature: float | None = Field(
        default=None, ge=1.0, le=1000.0, description='Of sampling = "temperature": 1 is by size, more is more even.'
    )

    @model_validator(mode="after")
    def _names_are_free(self) -> MultitaskOptions:
        for name in _TAKEN & set(self.tasks):
            raise ValueError(f"no task can be called {name!r}: results and splits have that name already")
        return self

    @model_validator(mode="after")
    def _sampling_has_what_it_needs(self) -> MultitaskOptions:
        if (self.temperature is not None) != (self.sampling == "temperature"):
            raise ValueError("'temperature' and sampling = \"temperature\" go together")
        for name, task in self.tasks.items():
            if (task.weight is not None) != (self.sampling == "weights"):
                raise ValueError(f"'weight' of every task and sampling = \"weights\" go together; see task {name!r}")
        return self


class Multitask(Recipe):
    """Several recipes at once on one encoder, with a head and metrics for each.

    Every task is a recipe on text with rows of its own, from its own [task.tasks.<name>.data]; [data] keeps what
    holds for the run. Rows of all tasks are mixed, each counts alike, and an epoch has as many as all tasks
    together; `sampling` says whose they are. Every task is measured under its name, as in mrpc/f1, and `mean` is the
    mean of one metric of each. The exported model holds the encoder, and a folder for each task's whole model.
    """

    Options = MultitaskOptions
    options: MultitaskOptions
    sample_settings: ClassVar = {
        "train.learning_rate": 1e-3,
        "train.epochs": 4,
        "train.batch_size": 32,
        "train.accumulate": 1,
    }

    def __init__(self, spec: Spec, choice: RecipeChoice | None = None) -> None:
        super().__init__(spec, choice)
        self.tasks = {name: _recipe(spec, task) for name, task in self.options.tasks.items()}
        self.names = list(self.tasks)

    # Known before anything is loaded ---------------------------------------------------------------

    def objections(self) -> dict[str, str]:
        """What a task can't do, a mean over what is not reported or goes different ways, and measuring all at once."""
        found: dict[str, str] = {}
        for name, choice in self.options.tasks.items():
            found |= objections_of(self.tasks[name], f"task.tasks.{name}")
            known = self._metrics_of(name)
            if choice.metric not in (None, *known):
                why = f"[task.tasks.{name}].metric is {choice.metric!r}; the task reports {', '.join(known)}"
                found[f"task.tasks.{name}.metric"] = why
        if not found and len({self._direction(name) for name in self.names}) > 1:
            told = ", ".join(f"{self._deciding(name)} of {name} ({self._direction(name)})" for name in self.names)
            why = f"no mean can be taken over {told}; name a 'metric' of each task that goes the same way"
            found["task.tasks"] = why
        if "train" in (self.spec.evaluate.splits or []):
            found["evaluate.splits"] = "multitask measures one task at a time; leave 'train' out of [evaluate].splits"
        return found

    def parts(self) -> dict[str, Recipe]:
        """The tasks, each with rows of its own."""
        return self.tasks

    def columns(self) -> dict[str, Column]:
        """The task; every other column has its task's name before its own."""
        return {"task": Column("the number of the task that a row belongs to")}

    def splits(self) -> dict[str, str]:
        """All training rows together, and what each task is measured on."""
        return {"train": "train", **{split: split for split, _, _ in self._measured()}}

    def reported(self) -> dict[str, Direction]:
        """The mean over tasks first; then every task's own metrics."""
        own: dict[str, Direction] = {
            reported_name(split, metric): direction
            for split, task, _ in self._measured()
            if split in evaluated_splits(self)
            for metric, direction in self._metrics_of(task).items()
        }
        return {_MEAN: self._direction(self.names[0]), **own}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """The mean over tasks; one that is measured on several splits enters by the mean of them."""
        by_task: dict[str, list[float]] = {}
        for split, task, _ in self._measured():
            name = reported_name(split, self._deciding(task))
            if name in metrics:
                by_task.setdefault(task, []).append(metrics[name])
        return {_MEAN: float(np.mean([np.mean(values) for values in by_task.values()]))}

    # Data -------------------------------------------------------------------------------------------

    def join(self, parts: dict[str, Splits]) -> Splits:
        """All tasks' training rows one after the other, and every other split under its task's name."""
        train = [self._marked(parts[name]["train"], name) for name in self.names]
        measured = {
            split: self._marked(parts[task][theirs], task)
            for split, task, theirs in self._measured()
            if theirs in parts[task]
        }
        return {"train": _concatenated(train), **measured}

    def sample(self, folder: Path) -> Splits:
        """Every task's own sample, and a tiny model that knows the words of all."""
        from transformers import AutoTokenizer

        from taskrecipe.core.sample_text import write_tiny_bert

        found = {name: recipe.sample(folder / name) for name, recipe in self.tasks.items()}
        tokenizers = [AutoTokenizer.from_pretrained(folder / name) for name in self.names]
        words = {word for one in tokenizers for word in set(one.get_vocab()) - set(one.all_special_tokens)}
        write_tiny_bert(folder, words)
        return self.join(found)

    def check(self, splits: Splits) -> None:
        """Check every task's rows as its recipe does."""
        for name, recipe in self.tasks.items():
            own = {"train": self._own(splits["train"], name)}
            own |= {
                theirs: self._own(splits[split], name) for split, theirs in self._splits_of(name) if split in splits
            }
            if not len(own["train"]):
                raise DataError(f"there are no rows of task {name!r}; limit rows in its own table", split="train")
            recipe.check(own)

    def load_processor(self, source: ModelSource) -> Any:
        """Every task's tokenizer; they have one vocabulary, so the first one's goes with the model."""
        for recipe in self.tasks.values():
            recipe.processor = recipe.load_processor(source)
        return self.tasks[self.names[0]].processor

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Preprocess every task's rows as its recipe does."""
        theirs = {ours: (task, name) for ours, task, name in self._measured()}
        wanted = [(name, "train") for name in self.names] if split == "train" else [theirs[split]]
        return _concatenated(
            [self._marked(self.tasks[task].preprocess(self._own(rows, task), name), task) for task, name in wanted]
        )

    def lengths(self, rows: Dataset) -> Sequence[int] | None:
        """Each row's length, as its task tells it."""
        found = np.zeros(len(rows), dtype=np.int64)
        for number, name in enumerate(self.names):
            mine = np.flatnonzero(_numbers(rows) == number)
            lengths = self.tasks[name].lengths(self._own(rows, name)) if len(mine) else []
            if lengths is None:
                return None
            found[mine] = lengths
        return found.tolist()

    def draw(self, rows: Dataset, random: np.random.Generator) -> Sequence[int] | None:
        """As many rows as there are, shared out among the tasks; within a task none comes twice before all have."""
        self.task_of_row = _numbers(rows)  # `backward` must know the share that each task has in an update
        if self.options.sampling == "size":
            return None
        mine = [np.flatnonzero(self.task_of_row == number) for number in range(len(self.names))]
        counts = shared_out(len(rows), self._proportions([len(numbers) for numbers in mine]))
        drawn = [_passes(numbers, count, random) for numbers, count in zip(mine, counts, strict=True)]
        together: list[int] = np.concatenate(drawn).tolist()
        return together

    def example(self, row: Row, random: np.random.Generator, training: bool) -> Row:
        """The row as its task sees it, and whose it is."""
        name = self.names[row["task"]]
        return {"task": name, "row": self.tasks[name].example(_unmarked(row, name), random, training)}

    def collate(self, rows: list[Row]) -> Batch:
        """A batch for each task that has rows."""
        groups = {name: [row["row"] for row in rows if row["task"] == name] for name in self.names}
        return {name: self.tasks[name].collate(group) for name, group in groups.items() if group}

    # Model ------------------------------------------------------------------------------------------

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """Every task's model, all on one encoder."""
        from taskrecipe.contrib.shared_encoder import SharedEncoder

        return SharedEncoder({name: recipe.load_model(source) for name, recipe in self.tasks.items()})

    def weights(self, batch: Batch) -> dict[str, float]:
        """One term a task, which weighs nothing where the task has no rows."""
        return {name: self._weight(name, batch[name]) if name in batch else 0.0 for name in self.names}

    def loss(self, model: torch.nn.Module, batch: Batch) -> Loss:
        """Each task's own loss on its rows."""

        def run(models: dict[str, Any]) -> dict[str, dict[str, Any]]:
            return {name: vars(self.tasks[name].loss(models[name], inputs)) for name, inputs in batch.items()}

        found = model(run)
        terms = {name: one["terms"]["loss"] for name, one in found.items()}
        return Loss(terms, {name: one["outputs"] for name, one in found.items()})

    def backward(self, model: torch.nn.Module, update: Update) -> None:
        """Every row counts alike: a task's mean counts by the share of the update's rows that are its own."""
        numbers = self.task_of_row[update.rows]
        shares = {name: float(np.mean(numbers == number)) for number, name in enumerate(self.names)}
        for batch in update:
            terms = self.loss(model, batch.inputs).terms
            update.backward({name: term * shares[name] for name, term in terms.items()}, batch)

    # Evaluation -------------------------------------------------------------------------------------

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The predictions of the one task that is measured."""
        from accelerate.utils import extract_model_from_parallel

        ((name, inputs),) = batch.items()
        own = extract_model_from_parallel(model).by_name()[name]
        return self.tasks[name].predictions(own, inputs, outputs[name])

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """The scores of the one task that is measured."""
        name = self.names[rows[0]["task"]]
        return self.tasks[name].score(predictions, self._own(rows, name))

    # One task of many -------------------------------------------------------------------------------

    def _measured(self) -> Iterator[tuple[str, str, str]]:
        """Our name of each split that is measured on, its task, and its name there."""
        for name in self.names:
            for split, theirs in self._splits_of(name):
                yield split, name, theirs

    def _splits_of(self, name: str) -> list[tuple[str, str]]:
        theirs = evaluated_splits(self.tasks[name])
        return [(name if len(theirs) == 1 else f"{name}/{split}", split) for split in theirs]

    def _deciding(self, name: str) -> str:
        """The metric of a task that enters the mean."""
        return self.options.tasks[name].metric or next(iter(self._metrics_of(name)))

    def _direction(self, name: str) -> Direction:
        """Which way the metric of a task that enters the mean is better."""
        return self._metrics_of(name)[self._deciding(name)]

    def _metrics_of(self, name: str) -> dict[str, Direction]:
        return {**self.tasks[name].metrics(), "loss": "min"}

    def _weight(self, name: str, inputs: Batch) -> float:
        weights = self.tasks[name].weights(inputs)
        if set(weights) != {"loss"}:
            raise UsageError(f"task {name!r} has several loss terms, {', '.join(weights)}; multitask takes one a task")
        return weights["loss"]

    def _proportions(self, sizes: list[int]) -> np.ndarray[Any, Any]:
        if self.options.temperature is not None:
            return np.asarray(sizes, dtype=np.float64) ** (1 / self.options.temperature)
        return np.asarray([task.weight for task in self.options.tasks.values()], dtype=np.float64)

    def _marked(self, rows: Dataset, name: str) -> Dataset:
        """Rows that know their task, with its name before each column's."""
        marked = rows.rename_columns({column: f"{name}.{column}" for column in rows.column_names})
        return marked.add_column("task", np.full(len(rows), self.names.index(name)))

    def _own(self, rows: Dataset, name: str) -> Dataset:
        """The rows of one task, under their own names."""
        own = {column: column.removeprefix(f"{name}.") for column in rows.column_names if column.startswith(f"{name}.")}
        mine = np.flatnonzero(_numbers(rows) == self.names.index(name))
        return rows.select(mine).select_columns(list(own)).rename_columns(own)


def shared_out(total: int, proportions: np.ndarray[Any, Any]) -> list[int]:
    """Whole numbers that add up to `total` and come nearest to `proportions`; the largest rests are rounded up."""
    exact = total * proportions / proportions.sum()
    counts = np.floor(exact).astype(int)
    rests = np.argsort(counts - exact, kind="stable")
    counts[rests[: total - counts.sum()]] += 1
    return [int(count) for count in counts]


def _recipe(spec: Spec, task: SubTask) -> Recipe:
    """The recipe of one task, with a spec of which the task's own tables are part."""
    values = {
        "recipe": task.recipe,
        "task": suited(task, spec).task,
        "data": task.data.model_copy(update={key: getattr(spec.data, key) for key in _OF_THE_RUN}),
        "evaluate": spec.evaluate.model_copy(update={"splits": None, "best": None}),
    }
    return installed().recipe(task.recipe)(spec.model_copy(update=values))


def _numbers(rows: Dataset) -> np.ndarray[Any, Any]:
    """The number of each row's task."""
    return np.asarray(rows.select_columns("task").with_format("arrow")[:]["task"])


def _passes(numbers: np.ndarray[Any, Any], count: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """`count` of the rows: whole passes over all of them, and a part of one more."""
    rounds = [random.permutation(numbers) for _ in range(-(-count // len(numbers)))]
    return np.concatenate([*rounds, numbers[:0]])[:count]


def _concatenated(parts: list[Dataset]) -> Dataset:
    from datasets import concatenate_datasets

    return concatenate_datasets(parts)


def _unmarked(row: Row, name: str) -> Row:
    return {key.removeprefix(f"{name}."): value for key, value in row.items() if key.startswith(f"{name}.")}
