"""The names that the Hugging Face Trainer and its example scripts have for our keys, with values converted.

People bring the settings of their scripts. An unknown key found here is reported with the line to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]
"""All values of the spec."""

Convert = Callable[[Any, Values], Any]
"""Returns the value of our key, given the value of theirs; None if it has no equal."""


_LARGEST = 2.0**63


@dataclass(frozen=True)
class Counterpart:
    """Our key for a setting of the Trainer, and how its value is converted."""

    key: str
    convert: Convert = lambda value, _: value


def _number(value: Any, _: Values) -> float | int | None:
    """Return a finite number, which may be written as text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
    return value if is_number else None


def _count(value: Any, values: Values) -> int | None:
    """Return a positive integer, which may be written as 3.0."""
    number = _number(value, values)
    return int(number) if number is not None and number >= 1 and number == int(number) else None


def _warmup(value: Any, values: Values) -> float | int | None:
    number = _number(value, values)
    return _count(number, values) if number is not None and number >= 1 else number


def _batch_size(value: Any, values: Values) -> int | None:
    """Return the rows of an update: theirs counts those of one micro-batch on one device."""
    size = _count(value, values)
    accumulate = _count(_find(values, "gradient_accumulation_steps") or _find(values, "accumulate") or 1, values)
    names = ("processes", "num_processes", "nproc_per_node")
    processes = _count(next(filter(None, (_find(values, name) for name in names)), 1), values)
    return size * accumulate * processes if size and accumulate and processes else None


def _find(values: Values, name: str) -> Any:
    """Return the value of a key at the top or in a table; None if there is no such key."""
    tables = [values, *(table for table in values.values() if isinstance(table, Mapping))]
    return next((table[name] for table in tables if name in table), None)


def _precision(name: str) -> Convert:
    def convert(value: Any, _: Values) -> str | None:
        return {True: name, False: "no"}.get(value) if isinstance(value, bool) else None

    return convert


def _if_true(word: str) -> Convert:
    def convert(value: Any, _: Values) -> str | None:
        return word if value is True else None

    return convert


def _strategy(value: Any, _: Values) -> str | None:
    return {"epoch": "epoch", "no": "end"}.get(value) if isinstance(value, str) else None


def _every(value: Any, values: Values) -> int | str | None:
    return _strategy(value, values) or _count(value, values)


def _metric(value: Any, _: Values) -> str | None:
    return value.removeprefix("eval_") if isinstance(value, str) else None


_OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw": "adamw",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
    "adamw_bnb_8bit": "adamw_8bit",
    "adamw_8bit": "adamw_8bit",
    "paged_adamw_8bit": "adamw_8bit",
    "galore_adamw": "galore",
    "apollo_adamw": "apollo",
    "schedule_free_adamw": "schedule_free",
    "lion_32bit": "lion",
    "lion_8bit": "lion",
}


def _optimizer(value: Any, _: Values) -> str | None:
    return _OPTIMIZERS.get(value) if isinstance(value, str) else None


def _tracker(value: Any, _: Values) -> str | None:
    names = value if isinstance(value, list) else [value]
    return names[0] if len(names) == 1 and names[0] not in ("none", "all") else None


_EPOCHS = Counterpart("train.epochs", _count)
_UPDATES = Counterpart("train.updates", _count)
_BATCH_SIZE = Counterpart("train.batch_size", _batch_size)
_EVALUATION_BATCH_SIZE = Counterpart("evaluate.batch_size", _count)
_WARMUP = Counterpart("schedule.warmup", _warmup)
_SCHEDULE = Counterpart("schedule.name")
_LENGTH = Counterpart("task.max_length", _count)
_EVALUATION = Counterpart("evaluate.every", _strategy)
_BF16, _FP16 = Counterpart("train.precision", _precision("bf16")), Counterpart("train.precision", _precision("fp16"))
_CPU = Counterpart("launch.device", _if_true("cpu"))
_PROCESSES = Counterpart("launch.processes", _count)

COUNTERPARTS: dict[str, Counterpart] = {
    "num_train_epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "max_epochs": _EPOCHS,
    "max_steps": _UPDATES,
    "max_train_steps": _UPDATES,
    "num_train_steps": _UPDATES,
    "per_device_train_batch_size": _BATCH_SIZE,
    "per_gpu_train_batch_size": _BATCH_SIZE,
    "train_batch_size": _BATCH_SIZE,
    "per_device_eval_batch_size": _EVALUATION_BATCH_SIZE,
    "per_gpu_eval_batch_size": _EVALUATION_BATCH_SIZE,
    "eval_batch_size": _EVALUATION_BATCH_SIZE,
    "gradient_accumulation_steps": Counterpart("train.accumulate", _count),
    "lr": Counterpart("train.learning_rate", _number),
    "learning_rate": Counterpart("train.learning_rate", _number),
    "fp16": _FP16,
    "bf16": _BF16,
    "mixed_precision": Counterpart("train.precision"),
    "max_grad_norm": Counterpart("train.clip_norm", _number),
    "label_smoothing_factor": Counterpart("train.label_smoothing", _number),
    "gradient_checkpointing": Counterpart("train.gradient_checkpointing"),
    "torch_compile": Counterpart("train.compile"),
    "group_by_length": Counterpart("train.order", _if_true("bucketed")),
    "warmup_ratio": _WARMUP,
    "warmup_steps": _WARMUP,
    "num_warmup_steps": _WARMUP,
    "lr_scheduler_type": _SCHEDULE,
    "lr_scheduler": _SCHEDULE,
    "optim": Counterpart("optimizer.name", _optimizer),
    "weight_decay": Counterpart("optimizer.weight_decay", _number),
    "adam_beta1": Counterpart("optimizer.beta1", _number),
    "adam_beta2": Counterpart("optimizer.beta2", _number),
    "adam_epsilon": Counterpart("optimizer.eps", _number),
    "logging_steps": Counterpart("log.every", _count),
    "eval_steps": Counterpart("evaluate.every", _count),
    "eval_strategy": _EVALUATION,
    "evaluation_strategy": _EVALUATION,
    "metric_for_best_model": Counterpart("evaluate.best", _metric),
    "early_stopping_patience": Counterpart("evaluate.patience", _count),
    "early_stopping_threshold": Counterpart("evaluate.min_delta", _number),
    "save_steps": Counterpart("checkpoint.every", _count),
    "save_strategy": Counterpart("checkpoint.every", _strategy),
    "checkpointing_steps": Counterpart("checkpoint.every", _every),
    "save_total_limit": Counterpart("checkpoint.keep", _count),
    "data_seed": Counterpart("seed"),
    "run_name": Counterpart("name"),
    "report_to": Counterpart("track.name", _tracker),
    "model_name_or_path": Counterpart("model.name"),
    "model_name": Counterpart("model.name"),
    "model_revision": Counterpart("model.revision"),
    "model_type": Counterpart("model.type"),
    "tokenizer_name": Counterpart("model.processor"),
    "image_processor_name": Counterpart("model.processor"),
    "dataset_name": Counterpart("data.path"),
    "dataset_config_name": Counterpart("data.name"),
    "dataset_config": Counterpart("data.name"),
    "train_file": Counterpart("data.files.train"),
    "validation_file": Counterpart("data.files.validation"),
    "test_file": Counterpart("data.files.test"),
    "max_train_samples": Counterpart("data.limit.train", _count),
    "max_eval_samples": Counterpart("data.limit.validation", _count),
    "dataloader_num_workers": Counterpart("data.workers"),
    "task_name": Counterpart("task.name"),
    "max_seq_length": _LENGTH,
    "max_seq_len": _LENGTH,
    "max_length": _LENGTH,
    "num_processes": _PROCESSES,
    "nproc_per_node": _PROCESSES,
    "use_cpu": _CPU,
    "no_cuda": _CPU,
}
"""The Trainer's name of each setting, and our key."""

NOT_NEEDED: dict[str, str] = {
    "output_dir": "`recipe run --out FOLDER` chooses the folder",
    "overwrite_output_dir": "a run never overwrites another",
    "logging_dir": "the log is in the run's folder",
    "load_best_model_at_end": "the best checkpoint is always the one that is exported",
    "greater_is_better": "the recipe knows which way a metric improves",
    "resume_from_checkpoint": "`recipe resume FOLDER` continues a run",
    "do_train": "`recipe run` trains and evaluates",
    "do_eval": "`recipe run` trains and evaluates",
    "do_predict": "`recipe run` trains and evaluates",
    "trust_remote_code": "code of a hub repository is never run",
    "remove_unused_columns": "the recipe takes the columns it reads",
    "push_to_hub": "a run writes to its folder only",
}
"""Settings of the Trainer that have no key here, and why."""
