"""The options of `multitask`: several tasks by name, and how their rows are mixed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from taskrecipe import Data, RecipeChoice, TaskOptions, Text

OF_THE_RUN = ("streaming", "workers", "offline", "sample")
"""Keys of [data] that hold for the run, not for a task."""

MEAN = "mean"
_TAKEN = {"train", "validation", MEAN}


class SubTask(RecipeChoice):
    """One task: a recipe and its options, and where its rows come from."""

    data: Data = Field(default=Data(), description="Where the task's rows come from; the keys are those of [data].")
    weight: float | None = Field(
        default=None,
        gt=0.0,
        le=1e6,
        description='Its share of the rows, compared to other tasks; for sampling = "weights".',
    )
    metric: Text | None = Field(
        default=None, description="The metric that enters the mean over tasks; by default the recipe's first."
    )

    @model_validator(mode="after")
    def _data_is_its_own(self) -> SubTask:
        for key in OF_THE_RUN:
            if getattr(self.data, key) != Data.model_fields[key].default:
                raise ValueError(f"{key!r} holds for all tasks: it belongs in [data]")
        return self


TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class MultitaskOptions(TaskOptions):
    """Options of `multitask`."""

    tasks: dict[TaskName, SubTask] = Field(
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
            raise ValueError(f"no task can be called {name!r}: metrics and splits already have that name")
        return self

    @model_validator(mode="after")
    def _sampling_has_what_it_needs(self) -> MultitaskOptions:
        if (self.temperature is not None) != (self.sampling == "temperature"):
            raise ValueError("'temperature' and sampling = \"temperature\" go together")
        for name, task in self.tasks.items():
            if (task.weight is not None) != (self.sampling == "weights"):
                raise ValueError(f"'weight' of every task and sampling = \"weights\" go together; see task {name!r}")
        return self
