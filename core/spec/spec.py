"""The spec: every table a run is described by, with bounds and a description on every key."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, PlainValidator, SerializeAsAny, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError

from taskrecipe.core.errors import PluginError, RecipeError
from taskrecipe.core.plugins import Callback, Optimizer, Schedule, Tracker
from taskrecipe.core.registry import Group, NameClashError, Plugin, Registry, UnknownNameError, installed
from taskrecipe.core.spec.table import LARGEST, Count, HubOrPath, LocalPath, Share, Table, TaskOptions, Text

SPEC_VERSION = 1

_Model = TypeVar("_Model", bound=Table)

Every = Literal["epoch"] | Count
Scalar = bool | int | float | str


class Model(Table):
    """`[model]`: which model, and whether its weights are taken."""

    name: HubOrPath | None = Field(default=None, description="A hub id, or a folder in the Hugging Face layout.")
    type: Text | None = Field(
        default=None,
        description="Instead of a name: an architecture such as 'gpt2', built from [model.config] at random.",
    )
    revision: Text | None = Field(
        default=None, description="Commit, tag or branch of the hub id; pin a commit to be exact."
    )
    pretrained: bool = Field(default=True, description="false: keep the architecture, start from random weights.")
    config: dict[str, Scalar | list[Scalar]] = Field(
        default={},
        description="Values of the model's own configuration to replace, e.g. hidden_size; unknown ones are refused.",
    )
    processor: HubOrPath | None = Field(
        default=None, description="Hub id or folder of the tokenizer or image processor, where it is not the model's."
    )


class Data(Table):
    """`[data]`: where rows come from, and what they are called there."""

    path: Text | None = Field(default=None, description="A data set's hub id.")
    name: Text | None = Field(default=None, description="The configuration of the hub data set, such as 'mrpc'.")
    revision: Text | None = Field(
        default=None, description="Commit, tag or branch of the hub id; pin a commit to be exact."
    )
    files: dict[Text, LocalPath | list[LocalPath]] = Field(
        default={}, description='Local files of each split (globs allowed), relative to the spec: train = "train.csv".'
    )
    format: Literal["csv", "tsv", "jsonl", "parquet", "text", "imagefolder", "coco", "voc"] | None = Field(
        default=None, description="How the files are read; taken from their ending where not given."
    )
    images: LocalPath | None = Field(
        default=None, description="Folder of the pictures that COCO or VOC annotations name."
    )
    columns: dict[Text, Text] = Field(default={}, description='Column names: ours = "theirs".')
    splits: dict[Text, Text] = Field(default={}, description='Split names: ours = "theirs".')
    limit: dict[Text, Count] = Field(default={}, description="Use only the first rows of a split: train = 500.")
    holdout: Share | None = Field(
        default=None, description="Share of the training rows set aside as validation, where there is no such split."
    )
    streaming: bool = Field(
        default=False, description="Read rows as they come instead of storing them; needs [train].updates."
    )
    workers: int = Field(
        default=0, ge=0, le=256, description="Processes that prepare batches beside the training process."
    )
    offline: Literal["error", "sample"] = Field(
        default="error", description="Where neither cache nor hub has the data or model: stop, or train on sample data."
    )
    sample: bool = Field(
        default=False, description="Train on the recipe's own sample data and tiny model, whatever else is given."
    )


class Train(Table):
    """`[train]`: what an update is, and how many there are."""

    epochs: Count | None = Field(
        default=None, description="Passes over the training rows; with updates too, whichever ends first."
    )
    updates: Count | None = Field(default=None, description="Optimizer updates; with epochs too, whichever ends first.")
    batch_size: Count = Field(default=32, description="Examples per update, over all processes and micro-batches.")
    accumulate: Count = Field(
        default=1, description="Micro-batches an update is split into: memory changes, results don't."
    )
    learning_rate: float = Field(gt=0.0, le=1e10, description="The peak rate; the schedule multiplies it.")
    precision: Literal["no", "bf16", "fp16", "fp8"] = Field(default="no", description="Arithmetic of the forward pass.")
    clip_norm: float = Field(
        default=1.0, ge=0.0, le=1e10, description="Largest norm of an update's gradient; 0 lifts the limit."
    )
    order: Literal["shuffled", "bucketed", "sequential"] = Field(
        default="shuffled", description="Order of rows within an epoch; bucketed keeps like lengths together."
    )
    label_smoothing: Share = Field(
        default=0.0, description="Share of probability spread over the other classes while training."
    )
    gradient_checkpointing: bool = Field(default=False, description="Compute activations twice to store fewer of them.")
    compile: bool = Field(default=False, description="Compile the model with torch.compile.")
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None,
        description="Decay of a running average of the weights, which is then what is evaluated and exported.",
    )


class Evaluate(Table):
    """`[evaluate]`: when to measure, and what the best is."""

    every: Every | Literal["end"] = Field(default="epoch", description="'epoch', a number of updates, or 'end'.")
    batch_size: Count | None = Field(
        default=None, description="Rows per forward pass; by default that of a training micro-batch."
    )
    splits: list[Text] | None = Field(
        default=None, min_length=1, description="Splits to measure on; by default the recipe's own."
    )
    best: Text | None = Field(
        default=None, description="The metric that decides the best checkpoint; by default the recipe's first."
    )
    patience: Count | None = Field(default=None, description="Stop after this many evaluations without a better one.")
    min_delta: float = Field(
        default=0.0, ge=0.0, le=1e10, description="By how much an evaluation must be better to count as better."
    )


class Checkpoint(Table):
    """`[checkpoint]`: when to save, and how many to keep."""

    every: Every | Literal["end"] = Field(default="epoch", description="'epoch', a number of updates, or 'end'.")
    keep: Count = Field(default=2, description="Checkpoints to keep; the best and the last are always kept.")


class Log(Table):
    """`[log]`: how often numbers are written."""

    every: Count = Field(default=10, description="Updates between two lines.")


class Launch(Table):
    """`[launch]`: on how many processes, and on what."""

    processes: Annotated[int, Field(ge=1, le=1024)] = Field(default=1, description="Processes on this machine.")
    device: Literal["auto", "cpu"] = Field(default="auto", description="auto takes an accelerator where there is one.")


def _by_recipe(value: Any, info: ValidationInfo) -> TaskOptions:
    if "recipe" not in info.data:  # that has a problem of its own; nothing can be said of the options
        return TaskOptions.model_construct()
    plugin = _registry(info).find("recipes", info.data["recipe"])
    options: type[TaskOptions] = plugin.load().Options
    return _validated(options, _plain(value), plugin, info)


def _by_name(group: Group, default: str | None = None) -> PlainValidator:
    """A table that the plugin it names validates."""

    def validate(value: Any, info: ValidationInfo) -> Table:
        table = _plain(value)
        if not isinstance(table, dict):
            raise PydanticKnownError("dict_type")
        name = table.get("name", default)
        plugin = _look_up(info, group, name, at=("name",))
        model: type[Table] = plugin.load()
        return _validated(model, {**table, "name": name}, plugin, info)

    return PlainValidator(validate)


def _installed_recipe(name: str, info: ValidationInfo) -> str:
    _look_up(info, "recipes", name).load()
    return name


class RecipeChoice(Table):
    """A recipe's name and its options, which that recipe's own model validates."""

    recipe: Annotated[Text, AfterValidator(_installed_recipe)] = Field(
        description="A registered recipe; `recipe list` shows them."
    )
    task: Annotated[SerializeAsAny[TaskOptions], PlainValidator(_by_recipe)] = Field(
        default_factory=TaskOptions, validate_default=True, description="The recipe's own options."
    )


class Spec(RecipeChoice):
    """A whole run."""

    spec_version: int = Field(ge=SPEC_VERSION, le=SPEC_VERSION, description="The version of this format.")
    seed: int = Field(default=42, ge=0, le=LARGEST, description="All randomness is a function of it.")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")] | None = Field(
        default=None, description="The run's name, and its folder's; by default the file's."
    )
    model: Model = Field(description="Which model.")
    data: Data = Field(description="Where rows come from.")
    train: Train = Field(description="What an update is, and how many.")
    optimizer: Annotated[SerializeAsAny[Optimizer], _by_name("optimizers", default="adamw")] = Field(
        default_factory=Optimizer, validate_default=True, description="How gradients move weights."
    )
    schedule: Annotated[SerializeAsAny[Schedule], _by_name("schedules", default="linear")] = Field(
        default_factory=Schedule, validate_default=True, description="The learning rate over time."
    )
    evaluate: Evaluate = Field(default=Evaluate(), description="When to measure, and what the best is.")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="When to save, and how many to keep.")
    log: Log = Field(default=Log(), description="How often numbers are written.")
    callbacks: list[Annotated[SerializeAsAny[Callback], _by_name("callbacks")]] = Field(
        default=[], max_length=64, description="Listeners of the run."
    )
    track: Annotated[SerializeAsAny[Tracker], _by_name("trackers")] | None = Field(
        default=None, description="Where numbers are shown besides the run's folder."
    )
    launch: Launch = Field(default=Launch(), description="On how many processes, and on what.")


def _registry(info: ValidationInfo) -> Registry:
    return info.context["registry"] if info.context else installed()


def _look_up(info: ValidationInfo, group: Group, name: Any, at: tuple[str, ...] = ()) -> Plugin:
    """The plugin of that name; a name that is unknown or ambiguous is a problem of the spec."""
    if not isinstance(name, str):
        raise _problem(at, "missing" if name is None else "string_type", name)
    try:
        return _registry(info).find(group, name)
    except (UnknownNameError, NameClashError) as error:
        code = "unknown" if isinstance(error, UnknownNameError) else "ambiguous"
        candidates = error.known if isinstance(error, UnknownNameError) else error.owners
        context = {"message": str(error), "candidates": candidates}
        raise _problem(at, PydanticCustomError(f"{code}-{group[:-1]}", "{message}", context), name) from None


def _validated(model: type[_Model], values: Any, plugin: Plugin, info: ValidationInfo) -> _Model:
    try:
        return model.model_validate(values, context=info.context)
    except (ValidationError, RecipeError):
        raise
    except Exception as cause:  # of a validator of the plugin's own
        message = f"{plugin.describe()} failed to check its table: {type(cause).__name__}: {cause}"
        raise PluginError(message) from cause


def _problem(at: tuple[str, ...], kind: str | PydanticCustomError, value: Any) -> ValidationError:
    return ValidationError.from_exception_data("Spec", [InitErrorDetails(type=kind, loc=at, input=value)])


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, Table) else value
