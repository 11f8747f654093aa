"""transformers' example scripts: the recipe that does the same, and the names of their own options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from taskrecipe.spec.trainer_names import Counterpart, Values

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")


@dataclass(frozen=True)
class Script:
    """What a script does, in words of a spec."""

    recipe: str
    options: Mapping[str, Counterpart] = field(default_factory=dict)
    """Its own options, and our keys for them."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values that it has unless an option says otherwise, by our keys."""
    adapt: Callable[[Values], dict[str, Any]] = lambda _: {}
    """Returns further values that follow from the options."""


def _percent(value: Any, _: Values) -> float | None:
    return value / 100 if isinstance(value, int) and 0 < value < 100 else None


def _share(value: Any, _: Values) -> float | None:
    return value if isinstance(value, float) and 0 < value < 1 else None


def _if_true(word: str) -> Callable[[Any, Values], Any]:
    return lambda value, _: word if value is True else None


def _config(value: Any, _: Values) -> dict[str, Any] | None:
    """Return the values of `--config_overrides n_embd=1024,n_layer=8`."""
    from taskrecipe.migration.arguments import parse_scalar

    pairs = [pair.partition("=") for pair in str(value).split(",") if "=" in pair]
    return {name.strip(): parse_scalar(text.strip()) for name, _, text in pairs} or None


_HOLDOUT = {"validation_split_percentage": Counterpart("data.holdout", _percent)}
_IMAGES = {
    "train_dir": Counterpart("data.files.train"),
    "validation_dir": Counterpart("data.files.validation"),
    "train_val_split": Counterpart("data.holdout", _share),
    "image_column_name": Counterpart("data.columns.image"),
    "label_column_name": Counterpart("data.columns.label"),
}
_LANGUAGE = {
    **_HOLDOUT,
    "config_overrides": Counterpart("model.config", _config),
    "streaming": Counterpart("data.streaming"),
    "text_column_name": Counterpart("data.columns.text"),
    "max_seq_length": Counterpart("task.length"),
    "block_size": Counterpart("task.length"),
}
_TEXT_TO_TEXT = {
    "source_prefix": Counterpart("task.prefix"),
    "max_source_length": Counterpart("task.source_length"),
    "max_target_length": Counterpart("task.target_length"),
    "num_beams": Counterpart("task.beams"),
}
_OBJECTS = {
    "image_square_size": Counterpart("task.image_size"),
    "image_height": Counterpart("task.image_size"),
    "shortest_edge": Counterpart("task.image_size"),
}

_SUMMARY_COLUMNS = {
    "cnn_dailymail": ("article", "highlights"),
    "xsum": ("document", "summary"),
    "big_patent": ("description", "abstract"),
    "samsum": ("dialogue", "summary"),
    "multi_news": ("document", "summary"),
    "billsum": ("text", "summary"),
}
"""The columns of well-known data sets, by the last part of their name."""


def _from_scratch(values: Values) -> dict[str, Any]:
    """Return what a model from a bare configuration needs."""
    name = values.get("config_name") or values.get("config_name_or_path")
    return {"model.name": name, "model.pretrained": False} if name and "model_name_or_path" not in values else {}


def _adapt_glue(values: Values) -> dict[str, Any]:
    task = str(values.get("task_name", "")).lower()
    if task in GLUE_TASKS:
        return {"task.name": task, "data.path": "nyu-mll/glue", "data.name": task}
    return {"task.name": "single"}


def _adapt_tags(values: Values) -> dict[str, Any]:
    if "label_column_name" in values:
        return {}
    return {"data.columns.tags": f"{values.get('task_name', 'ner')}_tags"} if "dataset_name" in values else {}


def _adapt_summary(values: Values) -> dict[str, Any]:
    known = _SUMMARY_COLUMNS.get(str(values.get("dataset_name", "")).rpartition("/")[2])
    return {"data.columns.source": known[0], "data.columns.target": known[1]} if known else {}


_CAUSAL = Script("clm", _LANGUAGE, {}, _from_scratch)
_MASKED = Script(
    "mlm",
    {
        **_LANGUAGE,
        "mlm_probability": Counterpart("task.masked"),
        "line_by_line": Counterpart("task.rows", _if_true("documents")),
    },
    {},
    _from_scratch,
)
_SEGMENTS = {**_OBJECTS, "do_reduce_labels": Counterpart("task.reduce_labels")}

SCRIPTS: dict[str, Script] = {
    "run_glue": Script("glue", adapt=_adapt_glue),
    "run_clm": _CAUSAL,
    "run_mlm": _MASKED,
    "run_swag": Script("swag", fixed={"data.path": "allenai/swag", "data.name": "regular"}),
    "run_mim": Script(
        "mim",
        {
            **_IMAGES,
            "mask_patch_size": Counterpart("task.mask_patch_size"),
            "mask_ratio": Counterpart("task.mask_ratio"),
        },
        {"data.path": "uoft-cs/cifar10"},
        _from_scratch,
    ),
    "run_qa": Script(
        "question_answering",
        {
            "doc_stride": Counterpart("task.stride"),
            "max_answer_length": Counterpart("task.max_answer"),
            "version_2_with_negative": Counterpart("task.no_answer"),
            "null_score_diff_threshold": Counterpart("task.threshold"),
        },
    ),
    "run_ner": Script(
        "token_classification",
        {
            "text_column_name": Counterpart("data.columns.tokens"),
            "label_column_name": Counterpart("data.columns.tags"),
            "label_all_tokens": Counterpart("task.pieces", _if_true("all")),
        },
        adapt=_adapt_tags,
    ),
    "run_summarization": Script(
        "seq2seq",
        {
            **_TEXT_TO_TEXT,
            "text_column": Counterpart("data.columns.source"),
            "summary_column": Counterpart("data.columns.target"),
        },
        adapt=_adapt_summary,
    ),
    "run_translation": Script(
        "seq2seq",
        {
            **_TEXT_TO_TEXT,
            "source_lang": Counterpart("task.languages.source"),
            "target_lang": Counterpart("task.languages.target"),
        },
        {"task.metric": "bleu"},
    ),
    "run_image_classification": Script("image_classification", _IMAGES),
    "run_object_detection": Script("detection", _OBJECTS),
    "run_semantic_segmentation": Script("semantic_segmentation", _SEGMENTS),
    "run_instance_segmentation": Script("instance_segmentation", _OBJECTS),
}
"""Scripts that are covered, without the ending `_no_trainer`."""

NO_EQUIVALENT: dict[str, str] = {
    "config_name": "the configuration comes with the model; [model].config replaces values of it",
    "config_name_or_path": "the configuration comes with the model; [model].config replaces values of it",
    "fsdp": "sharding has no equivalent setting here",
    "deepspeed": "DeepSpeed has no equivalent setting here",
    "dispatch_batches": "batches are made by every process for itself",
    "fp16_full_eval": "evaluation computes in [train].precision",
    "bf16_full_eval": "evaluation computes in [train].precision",
    "keep_linebreaks": "[task].separator decides what joins rows",
    "low_cpu_mem_usage": "weights are always loaded without a second copy",
    "max_predict_samples": "`recipe predict` takes the rows of its input",
    "n_best_size": "one answer is given for each question",
    "overwrite_cache": "the cache follows from the data and the code: it is never stale",
    "pad_to_max_length": "rows are padded to the longest of their batch, which gives the same results",
    "predict_with_generate": "texts are generated at every evaluation",
    "preprocessing_num_workers": "rows are preprocessed once and cached",
    "return_entity_level_metrics": "`recipe evaluate` has more detail",
    "token": "`hf auth login` or HF_TOKEN",
    "use_auth_token": "`hf auth login` or HF_TOKEN",
    "use_fast_tokenizer": "the model's own tokenizer is used",
    "use_slow_tokenizer": "the model's own tokenizer is used",
    "with_tracking": "[track] names a tracker; the run's folder has everything without one",
    "hub_model_id": "`recipe export RUN --to hub --repo OWNER/NAME`",
    "hub_token": "`hf auth login` or HF_TOKEN",
    "ignore_mismatched_sizes": "a head that doesn't fit is initialized again, and a warning names it",
    "lang": "one language is all a spec has",
    "val_max_target_length": "[task].target_length holds for training and evaluation",
}
"""Options without a key here, and what there is instead."""
