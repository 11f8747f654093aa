"""The spec: all tables that describe a run, with bounds and a description for every key.

Annotations are no strings in this module (no `from __future__ import annotations`): pydantic would evaluate each of
them for every subclass, and commands would start slower.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, PlainValidator, SerializeAsAny, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError

from taskrecipe.errors import NameClashError, PluginError, RecipeError, UnknownNameError
from taskrecipe.plugins.kinds import Callback, Optimizer, Schedule, Technique, Tracker
from taskrecipe.plugins.registry import Group, Plugin, Registry, installed
from taskrecipe.spec.deepspeed import DeepSpeed, allow_file
from taskrecipe.spec.submission import Submit
from taskrecipe.spec.sweep import Expectation, Scalar, Sweep
from taskrecipe.spec.table import LARGEST, Count, HubOrPath, PathOrUrl, Share, Table, TaskOptions, Text, Url

SPEC_VERSION = 1

_Model = TypeVar("_Model", bound=Table)

Every = Literal["epoch"] | Count


class Model(Table):
    """`[model]`: which model, and whether it starts from pretrained weights."""

    name: HubOrPath | None = Field(default=None, description="A hub id, or a folder in the Hugging Face layout.")
    type: Text | None = Field(
        default=None,
        description="Instead of a name: an architecture such as 'gpt2', built from [model.config] with random weights.",
    )
    revision: Text | None = Field(
        default=None, description="Commit, tag or branch of the hub id; pin a commit to be exact."
    )
    pretrained: bool = Field(default=True, description="false: keep the architecture, start from random weights.")
    config: dict[str, Scalar | list[Scalar]] = Field(
        default={},
        description="Values of the model's own configuration to replace, e.g. hidden_size; unknown ones are refused.",
    )
    quantize: Literal["nf4", "int8"] | None = Field(
        default=None,
        description="Keep the linear layers of the body in 4 or 8 bits, by bitsandbytes. They can't be trained then: a "
        "technique such as lora trains next to them. int8 also rounds what goes into a layer, in steps that depend on "
        "the micro-batch.",
    )
    processor: HubOrPath | None = Field(
        default=None, description="Hub id or folder of the tokenizer or image processor, where it is not the model's."
    )


class Data(Table):
    """`[data]`: where rows come from, and the names of their columns and splits."""

    path: Text | None = Field(default=None, description="A data set's hub id.")
    name: Text | None = Field(default=None, description="The configuration of the hub data set, such as 'mrpc'.")
    revision: Text | None = Field(
        default=None, description="Commit, tag or branch of the hub id; pin a commit to be exact."
    )
    files: dict[Text, PathOrUrl | list[PathOrUrl]] = Field(
        default={},
        description="Files of each split (globs allowed), relative to the spec or at a URL: "
        'train = "train.csv" or "s3://bucket/train.csv". What is at a URL is downloaded once.',
    )
    format: Literal["csv", "tsv", "jsonl", "parquet", "text", "imagefolder", "coco", "voc", "squad"] | None = Field(
        default=None, description="How the files are read; by default their suffix and content say so."
    )
    quotes: bool | None = Field(
        default=None,
        description="Whether cells of a csv or tsv may be in quotes; by default true for csv and false for tsv.",
    )
    header: bool = Field(
        default=True,
        description='Whether the first line of a csv or tsv names the columns; if not, they are "0", "1", … in order.',
    )
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = Field(
        default=None, description="The character between the cells of a csv or tsv; by default a comma or a tab."
    )
    encoding: Text | None = Field(
        default=None, description="Encoding of csv, tsv and text files, such as 'cp1252'; by default UTF-8."
    )
    images: PathOrUrl | None = Field(
        default=None,
        description="Folder of the images that annotations or rows name; by default that of the file that names them.",
    )
    maps: dict[Text, PathOrUrl] = Field(
        default={},
        description='Folder of the label maps of each split, named like its images: train = "labels/train".',
    )
    columns: dict[Text, Text] = Field(
        default={}, description='Column names: ours = "theirs". Without a header theirs is a position, from "0".'
    )
    splits: dict[Text, Text] = Field(default={}, description='Split names: ours = "theirs".')
    limit: dict[Text, Count] = Field(default={}, description="Use only the first rows of a split: train = 500.")
    holdout: Share | None = Field(
        default=None,
        description="Share of the training rows to evaluate on, if the data has no validation split.",
    )
    streaming: bool = Field(
        default=False, description="Read rows one after another instead of storing them; needs [train].updates."
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Processes that prepare batches in the background.",
    )
    offline: Literal["error", "sample"] = Field(
        default="error", description="If neither cache nor hub has the data or model: stop, or train on sample data."
    )
    sample: bool = Field(
        default=False,
        description="Train on the recipe's sample data and tiny model, whatever else is named.",
    )


class Train(Table):
    """`[train]`: what an update is, and how many there are."""

    epochs: Count | None = Field(
        default=None, description="Passes over the training rows. If updates is given too, the first to end counts."
    )
    updates: Count | None = Field(
        default=None, description="Optimizer updates. If epochs is given too, the first to end counts."
    )
    batch_size: Count = Field(default=32, description="Rows per update, over all processes and micro-batches.")
    accumulate: Literal["auto"] | Count = Field(
        default=1,
        description="Micro-batches an update is split into. It saves memory and does not change results. 'auto': as "
        "many as memory needs.",
    )
    learning_rate: float = Field(gt=0.0, le=1e10, description="The peak learning rate; the schedule multiplies it.")
    precision: Literal["no", "bf16", "fp16", "fp8"] = Field(
        default="no", description="Number type of the forward pass."
    )
    clip_norm: float = Field(
        default=1.0, ge=0.0, le=1e10, description="Largest grad norm of an update; 0 turns clipping off."
    )
    order: Literal["shuffled", "bucketed", "sequential"] = Field(
        default="shuffled", description="Order of rows within an epoch; bucketed batches rows of similar length."
    )
    label_smoothing: Share = Field(
        default=0.0, description="Share of probability that training spreads over the other classes."
    )
    dropout: Literal["by_row", "torch"] = Field(
        default="by_row",
        description="by_row: masks follow from seed, update and row, and accumulate, processes and padding change "
        "nothing; torch: masks from torch's generator, one fused kernel on an accelerator instead of about 30 "
        "operations, 12 of them of the full size.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations twice, to store fewer of them."
    )
    compile: bool = Field(default=False, description="Compile the model with torch.compile.")
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None,
        description="Decay of a running average of the weights, which is then evaluated and exported.",
    )

    @property
    def first_accumulate(self) -> int:
        """Micro-batches an update is split into at first: with "auto", one until memory runs out."""
        return 1 if self.accumulate == "auto" else self.accumulate


class Evaluate(Table):
    """`[evaluate]`: when to evaluate, and which checkpoint is best."""

    every: Every | Literal["end"] = Field(default="epoch", description="'epoch', a number of updates, or 'end'.")
    batch_size: Count | None = Field(
        default=None, description="Rows per forward pass; by default as many as in a training micro-batch."
    )
    splits: list[Text] | None = Field(
        default=None, min_length=1, description="Splits to evaluate; by default those of the recipe."
    )
    final: list[Text] = Field(
        default=[],
        description='Splits that are evaluated once, after training, with the exported weights: ["test"].',
    )
    best: Text | None = Field(
        default=None, description="The metric that decides the best checkpoint; by default the recipe's first."
    )
    patience: Count | None = Field(default=None, description="Stop after this many evaluations without improvement.")
    min_delta: float = Field(
        default=0.0, ge=0.0, le=1e10, description="How much a metric must improve to count as an improvement."
    )
    choose_on_test: bool = Field(
        default=False,
        description="Let a test split decide the best checkpoint; its metrics will then be too optimistic.",
    )
    predictions: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        default=20_000,
        description="Most rows of a split whose predictions are kept in the run's folder; 0 keeps none.",
    )


class Predict(Table):
    """`[predict]`: how `recipe predict` uses the trained model. It has no effect on training."""

    batch_size: Count | None = Field(
        default=None, description="Rows per forward pass at most; by default as in an evaluation."
    )
    max_new_tokens: Count | None = Field(
        default=None,
        description="Tokens that a model of text generates at most. clm: without it, the loss of each row is measured.",
    )
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] = Field(
        default=0.0, description="0: always the likeliest token; else draw tokens, the higher the more varied."
    )
    top_k: Count | None = Field(default=None, description="Draw from this many likeliest tokens only.")
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=1.0, description="Draw from the likeliest tokens that together have this probability."
    )
    beams: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="Beams of a search for the likeliest text; by default the recipe's, or 1."
    )
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] = Field(
        default=1.0, description="Above 1: make tokens that were there already less likely."
    )


class Checkpoint(Table):
    """`[checkpoint]`: when to save, and how many to keep."""

    every: Every | Literal["end"] = Field(default="epoch", description="'epoch', a number of updates, or 'end'.")
    keep: Count = Field(default=2, description="Checkpoints to keep; the best and the last are always kept.")
    mirror: Url | None = Field(
        default=None,
        description="A place such as s3://bucket/runs to which the run's folder is copied after each checkpoint, in "
        "the background. `recipe resume` continues from there on any machine.",
    )


class Log(Table):
    """`[log]`: how often the loss is logged."""

    every: Count = Field(default=10, description="Updates between two log lines.")


class Report(Table):
    """`[report]`: whether a run ends with a report."""

    enabled: bool = Field(
        default=True, description="Write report.html into the run's folder when the run has finished."
    )


class Launch(Table):
    """`[launch]`: on how many processes and which device, and what each of them holds of the model."""

    processes: Annotated[int, Field(ge=1, le=1024)] = Field(default=1, description="Processes on this machine.")
    device: Literal["auto", "cpu"] = Field(default="auto", description="auto uses an accelerator if there is one.")
    timeout: Annotated[int, Field(ge=1, le=LARGEST)] = Field(
        default=1800, description="Seconds that processes wait for one that hangs, before the run is stopped."
    )
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,32}$")] | None = Field(
        default=None,
        description="Network interface by which several machines connect, such as 'eth0'; by default the one that "
        "leads to the first machine. It must belong to a network that is trusted.",
    )
    shard: Literal["none", "optimizer", "gradients", "full"] = Field(
        default="none",
        description="What is divided among processes: nothing; optimizer state (by DeepSpeed only); gradients too, and "
        "by torch weights between updates; or all of these all the time, which needs the least memory.",
    )
    engine: Literal["torch", "deepspeed"] = Field(
        default="torch",
        description="What divides it: torch's fully_shard, or DeepSpeed's ZeRO 1, 2 and 3 for shard = 'optimizer', "
        "'gradients' and 'full'. Both train the same way, and continue each other's checkpoints.",
    )
    deepspeed: DeepSpeed | None = Field(
        default=None,
        description="A DeepSpeed configuration, as a table or as the path of a JSON file: what the spec says too must "
        "agree with it, and the settings of ZeRO are used.",
        json_schema_extra=allow_file,
    )
    unused_weights: bool = Field(
        default=False,
        description="Let several processes look in each update for weights that it doesn't use, which costs some "
        "time. Recipes whose batches use only some weights do so without it.",
    )
    offload: bool = Field(
        default=False, description="Keep what is sharded in the memory of the CPU while a device doesn't need it."
    )

    @property
    def zero_settings(self) -> dict[str, Any]:
        """The settings of DeepSpeed's ZeRO that are given."""
        return self.deepspeed.zero_optimization.given_settings() if self.deepspeed else {}


def _by_recipe(value: Any, info: ValidationInfo) -> TaskOptions:
    if "recipe" not in info.data:  # it is wrong and reported; without it the options can't be checked
        return TaskOptions.model_construct()
    plugin = _registry(info).find("recipes", info.data["recipe"])
    options: type[TaskOptions] = plugin.load().Options
    return _validate_table(options, _as_plain(value), plugin, info)


def _by_name(group: Group, default: str | None = None) -> PlainValidator:
    """Return a validator that uses the model of the plugin that the table names."""

    def validate(value: Any, info: ValidationInfo) -> Table:
        table = _as_plain(value)
        if not isinstance(table, dict):
            raise PydanticKnownError("dict_type")
        name = table.get("name", default)
        plugin = _look_up(info, group, name, at=("name",))
        model: type[Table] = plugin.load()
        return _validate_table(model, {**table, "name": name}, plugin, info)

    return PlainValidator(validate)


def _installed_recipe(name: str, info: ValidationInfo) -> str:
    _look_up(info, "recipes", name).load()
    return name


class RecipeChoice(Table):
    """A recipe's name and its options, which the recipe's own model validates."""

    recipe: Annotated[Text, AfterValidator(_installed_recipe)] = Field(
        description="A registered recipe; `recipe list` lists them."
    )
    task: Annotated[SerializeAsAny[TaskOptions], PlainValidator(_by_recipe)] = Field(
        default_factory=TaskOptions, validate_default=True, description="The recipe's own options."
    )


class Spec(RecipeChoice):
    """A complete spec: everything that describes one run."""

    spec_version: int = Field(ge=SPEC_VERSION, le=SPEC_VERSION, description="The version of this format.")
    seed: int = Field(default=42, ge=0, le=LARGEST, description="Everything random is a function of it.")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")] | None = Field(
        default=None, description="Name of the run and of its folder; by default the name of the file."
    )
    model: Model = Field(default=Model.model_construct(), description="Which model.")
    data: Data = Field(default=Data.model_construct(), description="Where rows come from.")
    train: Train = Field(description="What an update is, and how many.")
    techniques: list[Annotated[SerializeAsAny[Technique], _by_name("techniques")]] = Field(
        default=[], max_length=16, description="Changes to how the recipe is trained, applied in this order."
    )
    optimizer: Annotated[SerializeAsAny[Optimizer], _by_name("optimizers", default="adamw")] = Field(
        default_factory=Optimizer, validate_default=True, description="How gradients change the weights."
    )
    schedule: Annotated[SerializeAsAny[Schedule], _by_name("schedules", default="linear")] = Field(
        default_factory=Schedule, validate_default=True, description="The learning rate over time."
    )
    evaluate: Evaluate = Field(
        default=Evaluate.model_construct(), description="When to evaluate, and which checkpoint is best."
    )
    predict: Predict = Field(default=Predict.model_construct(), description="How rows are predicted after training.")
    checkpoint: Checkpoint = Field(
        default=Checkpoint.model_construct(), description="When to save, and how many to keep."
    )
    log: Log = Field(default=Log.model_construct(), description="How often the loss is logged.")
    report: Report = Field(default=Report.model_construct(), description="Whether a run ends with a report.")
    callbacks: list[Annotated[SerializeAsAny[Callback], _by_name("callbacks")]] = Field(
        default=[], max_length=64, description="Listeners that receive the events of the run."
    )
    track: Annotated[SerializeAsAny[Tracker], _by_name("trackers")] | None = Field(
        default=None, description="A tracker that receives the metrics, besides the run's folder."
    )
    launch: Launch = Field(default=Launch.model_construct(), description="On how many processes and which device.")
    expect: dict[Text, Expectation] = Field(
        default={},
        description="What the run must come to, checked at its end: f1 = { at_least = 0.85 }, updates = 345, "
        'fingerprint = "…".',
    )
    sweep: Sweep | None = Field(default=None, description="A search for the best values, by `recipe sweep`.")
    submit: Submit = Field(
        default=Submit.model_construct(), description="What `recipe submit` asks a batch system for."
    )


def _registry(info: ValidationInfo) -> Registry:
    return info.context["registry"] if info.context else installed()


def _look_up(info: ValidationInfo, group: Group, name: Any, at: tuple[str, ...] = ()) -> Plugin:
    """Return the plugin of that name. An unknown or ambiguous name becomes a validation error."""
    if not isinstance(name, str):
        raise _problem(at, "missing" if name is None else "string_type", name)
    try:
        return _registry(info).find(group, name)
    except (UnknownNameError, NameClashError) as error:
        code = "unknown" if isinstance(error, UnknownNameError) else "ambiguous"
        candidates = error.known if isinstance(error, UnknownNameError) else error.owners
        context = {"message": str(error), "candidates": candidates}
        raise _problem(at, PydanticCustomError(f"{code}-{group[:-1]}", "{message}", context), name) from None


def _validate_table(model: type[_Model], values: Any, plugin: Plugin, info: ValidationInfo) -> _Model:
    try:
        return model.model_validate(values, context=info.context)
    except (ValidationError, RecipeError):
        raise
    except Exception as cause:  # raised by a validator of the plugin
        message = f"{plugin.describe()} failed to check its table: {type(cause).__name__}: {cause}"
        raise PluginError(message) from cause


def _problem(at: tuple[str, ...], kind: str | PydanticCustomError, value: Any) -> ValidationError:
    return ValidationError.from_exception_data("Spec", [InitErrorDetails(type=kind, loc=at, input=value)])


def _as_plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, Table) else value
