"""`[launch.deepspeed]`: a DeepSpeed configuration, read by value. Every key of it is known, checked, or refused.

Such a file sets what the spec sets too: batch sizes, precision, the stage of ZeRO. These
keys must agree with the spec, or be "auto". The settings of ZeRO that only change speed and memory are used.

Annotations are no strings in this module (no `from __future__ import annotations`), as in `taskrecipe.spec.spec`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import KeyPath
from taskrecipe.spec.table import Count, Table

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Spec

Auto = Literal["auto"]
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A number of weights, or of numbers that are sent together."""

HERE: KeyPath = ("launch", "deepspeed")
STAGES = {"optimizer": 1, "gradients": 2, "full": 3}
"""The stage of ZeRO for each value of `[launch].shard`."""
ELEMENTWISE = ("adamw", "sgd", "lion", "rmsprop")
"""Optimizers that change each number by itself. DeepSpeed shows an optimizer flat memory, without shapes."""


class Offload(Table):
    """Where DeepSpeed keeps what a device doesn't need."""

    device: Literal["none", "cpu", "nvme"] = Field(default="none", description="Only 'none' is supported.")
    pin_memory: bool = Field(default=False, description="Has no effect without another device.")


class Precision(Table):
    """A number type of DeepSpeed's."""

    enabled: bool | Auto = Field(default="auto", description="Must agree with [train].precision.")


class HalfPrecision(Precision):
    """DeepSpeed's 16-bit floats, which need a loss scale."""

    auto_cast: bool | None = Field(default=None, description="Has no effect while fp16 is off.")
    loss_scale: Annotated[float, Field(ge=0.0)] | None = Field(default=None, description="As above.")
    initial_scale_power: Size | None = Field(default=None, description="As above.")
    loss_scale_window: Size | None = Field(default=None, description="As above.")
    hysteresis: Size | None = Field(default=None, description="As above.")
    consecutive_hysteresis: bool | None = Field(default=None, description="As above.")
    min_loss_scale: Annotated[float, Field(ge=0.0)] | None = Field(default=None, description="As above.")


class ZeroSettings(Table):
    """`[launch.deepspeed.zero_optimization]`: how DeepSpeed divides and exchanges."""

    stage: Annotated[int, Field(ge=0, le=3)] | None = Field(
        default=None, description="Must agree with [launch].shard: 1 'optimizer', 2 'gradients', 3 'full'."
    )
    allgather_partitions: bool | None = Field(default=None, description="Gather weights by one exchange.")
    allgather_bucket_size: Size | Auto | None = Field(default=None, description="Numbers that are gathered together.")
    overlap_comm: bool | None = Field(default=None, description="Exchange gradients while others are computed.")
    reduce_scatter: bool | None = Field(default=None, description="Send each process only its part of the gradients.")
    reduce_bucket_size: Size | Auto | None = Field(default=None, description="Gradients that are exchanged together.")
    contiguous_gradients: bool | None = Field(default=None, description="Copy gradients into one piece of memory.")
    sub_group_size: Size | None = Field(default=None, description="Stage 3: weights that are updated together.")
    stage3_prefetch_bucket_size: Size | Auto | None = Field(
        default=None, description="Stage 3: weights that are gathered before they are needed."
    )
    stage3_param_persistence_threshold: Size | Auto | None = Field(
        default=None, description="Stage 3: parameters with fewer weights stay gathered."
    )
    stage3_max_live_parameters: Size | None = Field(
        default=None, description="Stage 3: gathered weights at a time, at most."
    )
    stage3_max_reuse_distance: Size | None = Field(
        default=None, description="Stage 3: weights that are needed again this soon stay gathered."
    )
    stage3_gather_16bit_weights_on_model_save: bool | None = Field(
        default=None, description="Has no effect: a run always exports whole weights."
    )
    offload_optimizer: Offload = Field(default=Offload.model_construct(), description="Not supported.")
    offload_param: Offload = Field(default=Offload.model_construct(), description="Not supported.")

    def given_settings(self) -> dict[str, Any]:
        """Return the settings that DeepSpeed is given."""
        other = {"stage", "stage3_gather_16bit_weights_on_model_save", "offload_optimizer", "offload_param"}
        given = self.model_dump(exclude=other, exclude_none=True)
        return {key: value for key, value in given.items() if value != "auto"}


class DeepSpeed(Table):
    """`[launch.deepspeed]`: a DeepSpeed configuration, in DeepSpeed's own words."""

    train_batch_size: Count | Auto = Field(default="auto", description="Must agree with [train].batch_size.")
    train_micro_batch_size_per_gpu: Count | Auto = Field(
        default="auto", description="Must be the rows of a micro-batch in one process."
    )
    gradient_accumulation_steps: Count | Auto = Field(default="auto", description="Must agree with [train].accumulate.")
    gradient_clipping: Annotated[float, Field(ge=0.0)] | Auto = Field(
        default="auto", description="Must agree with [train].clip_norm."
    )
    bf16: Precision = Field(default=Precision.model_construct(), description="Must agree with [train].precision.")
    fp16: HalfPrecision = Field(default=HalfPrecision.model_construct(), description="Not supported: use bf16.")
    zero_optimization: ZeroSettings = Field(
        default=ZeroSettings.model_construct(), description="How DeepSpeed divides and exchanges."
    )
    zero_allow_untested_optimizer: Literal[True] | None = Field(
        default=None, description="Has no effect: the optimizer is [optimizer]'s."
    )
    zero_force_ds_cpu_optimizer: Literal[False] | None = Field(
        default=None, description="Has no effect: the optimizer is [optimizer]'s."
    )
    steps_per_print: Count | Auto | None = Field(
        default=None, description="Has no effect: [log].every says how often is logged."
    )
    wall_clock_breakdown: Literal[False] | None = Field(default=None, description="Only false is supported.")
    optimizer: dict[str, Any] | None = Field(default=None, description="Refused: [optimizer] says it.")
    scheduler: dict[str, Any] | None = Field(default=None, description="Refused: [schedule] says it.")


def allow_file(schema: dict[str, Any]) -> None:
    """Let the schema for editors allow the name of a JSON file in the place of the table."""
    table = {key: schema.pop(key) for key in ("$ref", "allOf", "anyOf") if key in schema}
    schema["anyOf"] = [table, {"type": "string", "pattern": r"\.json$"}]


def find_deepspeed_problems(spec: "Spec") -> Iterator[Finding]:
    """Yield what can't be trained with DeepSpeed, and where its configuration contradicts the spec."""
    launch = spec.launch
    if launch.engine != "deepspeed":
        yield from _find_left_overs(spec)
        return
    if launch.shard == "none":
        message = "DeepSpeed divides what [launch].shard says: 'optimizer', 'gradients' or 'full' (ZeRO 1, 2 or 3)"
        yield Finding(("launch", "engine"), "conflict", message)
    if launch.offload:
        message = "[launch].offload does not work with engine 'deepspeed'; use engine 'torch'"
        yield Finding(("launch", "offload"), "conflict", message, "false")
    if launch.unused_weights:
        message = "DeepSpeed changes weights that get no gradient too, so [launch].unused_weights does not work with it"
        yield Finding(("launch", "unused_weights"), "conflict", message, "false")
    if spec.train.accumulate == "auto":
        # A process that runs out of memory in the middle of a pass would leave the others waiting for it.
        message = "[train].accumulate = 'auto' does not work with engine 'deepspeed': give the number of micro-batches"
        yield Finding(("train", "accumulate"), "conflict", message, "1")
    if spec.optimizer.name not in ELEMENTWISE and not spec.optimizer.needs_whole_weights:  # that is refused already
        message = f"optimizer '{spec.optimizer.name}' does not work with [launch].engine 'deepspeed'"
        yield Finding(("optimizer", "name"), "conflict", message, "adamw")
    if launch.deepspeed is not None:
        yield from _find_contradictions(spec, launch.deepspeed)


def _find_left_overs(spec: "Spec") -> Iterator[Finding]:
    if spec.launch.shard == "optimizer":
        message = "[launch].shard 'optimizer' needs engine 'deepspeed'; torch divides gradients too"
        yield Finding(("launch", "shard"), "conflict", message, "gradients")
    if spec.launch.deepspeed is not None:
        message = "[launch].deepspeed has no effect without engine = 'deepspeed'"
        yield Finding(HERE, "no-effect", message, at_key=True)


def _find_contradictions(spec: "Spec", given: DeepSpeed) -> Iterator[Finding]:
    train, launch = spec.train, spec.launch
    rows, left = divmod(train.batch_size, launch.processes * train.first_accumulate)
    expected: list[tuple[str, Any, Any, str]] = [
        ("train_batch_size", given.train_batch_size, train.batch_size, "[train].batch_size"),
        ("gradient_accumulation_steps", given.gradient_accumulation_steps, train.accumulate, "[train].accumulate"),
        ("gradient_clipping", given.gradient_clipping, train.clip_norm or 0.0, "[train].clip_norm"),
        ("bf16.enabled", given.bf16.enabled, train.precision == "bf16", "[train].precision"),
        ("fp16.enabled", given.fp16.enabled, train.precision == "fp16", "[train].precision"),
    ]
    if launch.processes > 1 and not left:  # else a launcher says how many there are
        name = "[train].batch_size by processes and accumulate"
        expected.append(("train_micro_batch_size_per_gpu", given.train_micro_batch_size_per_gpu, rows, name))
    if launch.shard in STAGES:
        stage = given.zero_optimization.stage
        expected.append(("zero_optimization.stage", stage, STAGES[launch.shard], "[launch].shard"))
    for key, found, wanted, name in expected:
        if found not in ("auto", None, wanted):
            message = f"{key} is {_show(found)}, but {name} makes it {_show(wanted)}; change one of them"
            yield Finding((*HERE, *key.split(".")), "conflict", message, _show(wanted))
    yield from _find_unsupported(given)


def _find_unsupported(given: DeepSpeed) -> Iterator[Finding]:
    for key, table in (("optimizer", "[optimizer]"), ("scheduler", "[schedule]")):
        if getattr(given, key) is not None:
            message = f"{table} of the spec says it; remove this key"
            yield Finding((*HERE, key), "conflict", message, at_key=True)
    for key in ("offload_optimizer", "offload_param"):
        if getattr(given.zero_optimization, key).device != "none":
            message = "offloading does not work with engine 'deepspeed'; use engine 'torch' with [launch].offload"
            yield Finding((*HERE, "zero_optimization", key, "device"), "conflict", message, '"none"')


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
