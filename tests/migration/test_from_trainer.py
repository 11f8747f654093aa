"""`recipe from-trainer`: the example command lines of transformers' scripts become specs with the right values."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe import UsageError, from_trainer, installed, validate
from taskrecipe.cli.validate import problems_of
from taskrecipe.migration.scripts import SCRIPTS

LINES: list[tuple[str, dict[str, Any]]] = [
    (
        """python run_glue.py --model_name_or_path google-bert/bert-base-cased --task_name mrpc --do_train --do_eval
        --max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3
        --output_dir /tmp/mrpc/""",
        {
            "recipe": "glue", "task.name": "mrpc", "task.max_length": 128, "model.name": "google-bert/bert-base-cased",
            "data.path": "nyu-mll/glue", "data.name": "mrpc", "train.batch_size": 32, "train.learning_rate": 2e-5,
            "train.epochs": 3, "evaluate.every": "end", "checkpoint.every": 500,
        },
    ),
    (
        """accelerate launch --num_processes 2 --mixed_precision fp16 run_glue_no_trainer.py
        --model_name_or_path google-bert/bert-base-cased --task_name mnli --max_length 128
        --per_device_train_batch_size 32 --gradient_accumulation_steps 2 --learning_rate 2e-5 --num_train_epochs 3
        --num_warmup_steps 100 --lr_scheduler_type cosine --weight_decay 0.1 --checkpointing_steps epoch --with_tracking
        --output_dir /tmp/mnli/ --seed 7""",
        {
            "task.name": "mnli", "train.batch_size": 128, "train.accumulate": 2, "train.precision": "fp16",
            "launch.processes": 2, "schedule.warmup": 100, "schedule.name": "cosine", "optimizer.weight_decay": 0.1,
            "checkpoint.every": "epoch", "seed": 7, "evaluate.every": "epoch",
        },
    ),
    (
        """python run_clm.py --model_name_or_path openai-community/gpt2 --dataset_name Salesforce/wikitext
        --dataset_config_name wikitext-2-raw-v1 --per_device_train_batch_size 8 --per_device_eval_batch_size 8
        --do_train --do_eval --output_dir /tmp/test-clm --block_size 1024""",
        {
            "recipe": "clm", "model.name": "openai-community/gpt2", "data.path": "Salesforce/wikitext",
            "data.name": "wikitext-2-raw-v1", "train.batch_size": 8, "evaluate.batch_size": 8, "task.length": 1024,
            "train.learning_rate": 5e-5, "train.epochs": 3,
        },
    ),
    (
        """torchrun --nproc_per_node 8 run_clm.py --model_type gpt2 --tokenizer_name openai-community/gpt2
        --config_overrides="n_embd=1024,n_head=16,n_layer=48" --dataset_name Salesforce/wikitext
        --dataset_config_name wikitext-2-raw-v1 --do_train --max_steps 1000 --per_device_train_batch_size 4
        --output_dir /tmp/test-clm --validation_split_percentage 5""",
        {
            "model.type": "gpt2", "model.processor": "openai-community/gpt2", "model.config.n_embd": 1024,
            "model.config.n_layer": 48, "train.updates": 1000, "train.batch_size": 32, "launch.processes": 8,
            "data.holdout": 0.05,
        },
    ),
    (
        """python run_mlm.py --model_name_or_path FacebookAI/roberta-base --train_file train.txt
        --validation_file valid.txt --max_seq_length 256 --mlm_probability 0.2 --line_by_line True --do_train --do_eval
        --per_device_train_batch_size 8 --output_dir /tmp/test-mlm""",
        {
            "recipe": "mlm", "model.name": "FacebookAI/roberta-base", "data.files.train": "train.txt",
            "data.files.validation": "valid.txt", "task.length": 256, "task.masked": 0.2, "task.rows": "documents",
        },
    ),
    (
        """python run_swag.py --model_name_or_path FacebookAI/roberta-base --do_train --do_eval --learning_rate 5e-5
        --num_train_epochs 3 --output_dir /tmp/swag_base --per_device_eval_batch_size=16
        --per_device_train_batch_size=16 --overwrite_output_dir""",
        {
            "recipe": "swag", "data.path": "allenai/swag", "data.name": "regular", "train.batch_size": 16,
            "evaluate.batch_size": 16, "train.learning_rate": 5e-5,
        },
    ),
    (
        """python run_mim.py --model_type vit --output_dir ./outputs/ --remove_unused_columns False
        --label_names bool_masked_pos --do_train --do_eval --learning_rate 2e-5 --weight_decay 0.05
        --num_train_epochs 100 --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --logging_strategy steps
        --logging_steps 10 --eval_strategy epoch --save_strategy epoch --load_best_model_at_end True
        --save_total_limit 3 --seed 1337 --image_processor_name google/vit-base-patch16-224 --mask_ratio 0.5""",
        {
            "recipe": "mim", "model.type": "vit", "model.processor": "google/vit-base-patch16-224", "seed": 1337,
            "optimizer.weight_decay": 0.05, "train.epochs": 100, "log.every": 10, "evaluate.every": "epoch",
            "checkpoint.every": "epoch", "checkpoint.keep": 3, "task.mask_ratio": 0.5, "data.path": "uoft-cs/cifar10",
        },
    ),
    (
        """python run_qa.py --model_name_or_path google-bert/bert-base-uncased --dataset_name rajpurkar/squad_v2
        --version_2_with_negative --do_train --do_eval --per_device_train_batch_size 12 --learning_rate 3e-5
        --num_train_epochs 2 --max_seq_length 384 --doc_stride 128 --output_dir /tmp/debug_squad/""",
        {
            "recipe": "question_answering", "data.path": "rajpurkar/squad_v2", "task.no_answer": True,
            "train.batch_size": 12, "train.learning_rate": 3e-5, "train.epochs": 2, "task.max_length": 384,
            "task.stride": 128,
        },
    ),
    (
        """python run_ner.py --model_name_or_path google-bert/bert-base-uncased --dataset_name lhoestq/conll2003
        --output_dir /tmp/test-ner --do_train --do_eval --label_all_tokens True""",
        {
            "recipe": "token_classification", "data.path": "lhoestq/conll2003", "data.columns.tags": "ner_tags",
            "task.pieces": "all", "train.batch_size": 8,
        },
    ),
    (
        """python run_summarization.py --model_name_or_path google-t5/t5-small --do_train --do_eval
        --dataset_name abisee/cnn_dailymail --dataset_config "3.0.0" --source_prefix "summarize: "
        --output_dir /tmp/tst-summarization --per_device_train_batch_size=4 --per_device_eval_batch_size=4
        --overwrite_output_dir --predict_with_generate --max_target_length 60 --num_beams 4""",
        {
            "recipe": "seq2seq", "data.path": "abisee/cnn_dailymail", "data.name": "3.0.0",
            "task.prefix": "summarize: ", "data.columns.source": "article", "data.columns.target": "highlights",
            "train.batch_size": 4,
            "task.target_length": 60, "task.beams": 4,
        },
    ),
    (
        """python run_translation.py --model_name_or_path google-t5/t5-small --do_train --do_eval --source_lang en
        --target_lang ro --source_prefix "translate English to Romanian: " --dataset_name wmt/wmt16
        --dataset_config_name ro-en --output_dir /tmp/tst-translation --per_device_train_batch_size=4""",
        {
            "recipe": "seq2seq", "task.metric": "bleu", "task.languages.source": "en", "task.languages.target": "ro",
            "task.prefix": "translate English to Romanian: ", "data.path": "wmt/wmt16", "data.name": "ro-en",
        },
    ),
    (
        """python run_image_classification.py --train_dir photos/train --validation_dir photos/val
        --model_name_or_path google/vit-base-patch16-224-in21k
        --output_dir ./beans_outputs/ --remove_unused_columns False --do_train --do_eval --push_to_hub
        --learning_rate 2e-5 --num_train_epochs 5 --per_device_train_batch_size 8 --logging_steps 10
        --eval_strategy epoch --save_strategy epoch --load_best_model_at_end True --save_total_limit 3 --seed 1337""",
        {
            "recipe": "image_classification", "data.files.train": "photos/train", "data.files.validation": "photos/val",
            "train.epochs": 5, "seed": 1337,
        },
    ),
    (
        """python run_object_detection.py --model_name_or_path facebook/detr-resnet-50 --dataset_name cppe-5
        --do_train true --do_eval true --output_dir detr-finetuned-cppe-5-10k-steps --num_train_epochs 100
        --image_square_size 600 --fp16 true --learning_rate 5e-5 --weight_decay 1e-4 --dataloader_num_workers 4
        --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --remove_unused_columns false
        --eval_do_concat_batches false --ignore_mismatched_sizes true --metric_for_best_model eval_map
        --greater_is_better true --load_best_model_at_end true --logging_strategy epoch --eval_strategy epoch
        --save_strategy epoch --save_total_limit 2 --lr_scheduler_type cosine --max_grad_norm 0.1""",
        {
            "recipe": "detection", "task.image_size": 600, "train.precision": "fp16", "train.clip_norm": 0.1,
            "evaluate.best": "map", "data.workers": 4, "optimizer.weight_decay": 1e-4, "schedule.name": "cosine",
        },
    ),
    (
        """python run_semantic_segmentation.py --model_name_or_path nvidia/mit-b0
        --dataset_name segments/sidewalk-semantic --output_dir ./segformer_outputs/ --remove_unused_columns False
        --do_train --do_eval --max_steps 10000 --learning_rate 0.00006 --lr_scheduler_type polynomial
        --per_device_train_batch_size 8 --logging_strategy steps --logging_steps 100 --eval_strategy epoch
        --save_strategy epoch --seed 1337 --do_reduce_labels""",
        {
            "recipe": "semantic_segmentation", "train.updates": 10000, "train.learning_rate": 6e-5,
            "schedule.name": "polynomial", "log.every": 100, "task.reduce_labels": True,
        },
    ),
    (
        """python run_instance_segmentation.py --model_name_or_path facebook/mask2former-swin-tiny-coco-instance
        --output_dir finetune-instance --dataset_name qubvel-hf/ade20k-mini --do_reduce_labels --image_height 256
        --image_width 256 --do_train --fp16 --num_train_epochs 40 --learning_rate 1e-5
        --lr_scheduler_type constant --per_device_train_batch_size 8 --gradient_accumulation_steps 2
        --dataloader_num_workers 8 --eval_strategy epoch --save_strategy epoch --metric_for_best_model eval_loss""",
        {
            "recipe": "instance_segmentation", "task.image_size": 256, "train.epochs": 40, "train.batch_size": 16,
            "train.accumulate": 2, "schedule.name": "constant", "evaluate.best": "loss", "train.learning_rate": 1e-5,
        },
    ),
]  # fmt: skip


def value_of(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[part] if isinstance(values, dict) else getattr(values, part)
    return values


def words(line: str) -> list[str]:
    import shlex

    return shlex.split(line)


@pytest.mark.parametrize(("line", "expected"), LINES, ids=[words(line)[1][:30] for line, _ in LINES])
def test_an_example_command_becomes_a_valid_spec_with_its_values(tmp_path, line, expected):
    path = tmp_path / "spec.toml"
    path.write_text(from_trainer(words(line)).text)
    spec = validate(path)
    assert {key: value_of(spec, key) for key in expected} == expected


def test_every_script_that_is_covered_has_an_example():
    named = " ".join(line for line, _ in LINES)
    assert [script for script in SCRIPTS if f"{script}.py" not in named] == []


def test_every_option_is_converted_or_named_with_the_reason():
    for line, _ in LINES:
        made = from_trainer(words(line))
        options = {word.partition("=")[0].lstrip("-") for word in words(line) if word.startswith("--")}
        told = {*made.origins.values(), *made.left_out}
        silent = {"task_name", "eval_strategy", "save_strategy", "greater_is_better", "logging_strategy"}
        off = {"remove_unused_columns", "eval_do_concat_batches"}
        assert options - told - silent - off == set(), line


def test_a_comment_says_what_has_no_equivalent():
    text = from_trainer(words("run_glue.py --task_name sst2 --model_name_or_path m/m --neftune_noise_alpha 5")).text
    assert "#   neftune_noise_alpha: no equivalent" in text


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_file_of_training_arguments_is_converted(tmp_path, recipe, ending):
    path = tmp_path / f"args.{ending}"
    content = {"learning_rate": 1e-5, "num_train_epochs": 2.0, "per_device_train_batch_size": 4, "bf16": True}
    path.write_text(json.dumps(content))  # JSON is YAML too
    assert recipe("from-trainer", path).code == 2
    done = recipe("from-trainer", path, "--recipe", "clm", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["values"]["train.epochs"] == 2
    assert told["values"]["train.precision"] == "bf16"
    assert told["origins"]["train.learning_rate"] == "learning_rate"
    assert tomllib.loads(told["spec"])["train"]["batch_size"] == 4


def test_real_training_arguments_are_converted(tmp_path):
    from transformers import TrainingArguments

    path = tmp_path / "args.json"
    arguments = TrainingArguments(output_dir="x", learning_rate=1e-4, max_steps=50, warmup_steps=5, report_to="none")
    path.write_text(arguments.to_json_string())
    made = from_trainer(path, "glue")
    assert made.values["train.updates"] == 50
    assert made.values["schedule.warmup"] == 5
    assert made.values["train.learning_rate"] == 1e-4
    assert made.values["train.batch_size"] == 8


def test_an_accelerate_config_is_converted(tmp_path):
    path = tmp_path / "default_config.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\nmachine_rank: 0\n"
        "main_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\nuse_cpu: false\n"
    )
    made = from_trainer(path, "clm")
    assert made.values["launch.processes"] == 4
    assert made.values["train.precision"] == "bf16"
    assert made.left_out == {}


def test_a_shell_script_with_variables_is_converted(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(
        "#!/bin/bash\nexport TASK_NAME=mrpc\n# train\npython run_glue.py \\\n  --model_name_or_path m/m \\\n"
        "  --task_name $TASK_NAME \\\n  --learning_rate 2e-5\n"
    )
    assert from_trainer(path).values["task.name"] == "mrpc"


def test_a_pickle_is_refused_with_the_way_to_dump_it(tmp_path, recipe):
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x04")
    refused = recipe("from-trainer", tmp_path / "training_args.bin")
    assert refused.code == 2
    assert "is a pickle" in refused.err
    assert "to_json_string()" in refused.err


def test_files_are_named_from_the_place_of_the_spec(tmp_path, recipe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "run_mlm.py --model_name_or_path m/m --train_file data/train.txt --validation_file data/valid.txt"
    assert recipe("from-trainer", "-o", "specs/mlm.toml", "--", *words(line)).code == 0
    assert tomllib.loads(Path("specs/mlm.toml").read_text())["data"]["files"]["train"] == "../data/train.txt"
    again = recipe("from-trainer", "-o", "specs/mlm.toml", "--", *words(line))
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not valid JSON"), ("[1]", "must hold a table"), ("[" * 100_000, "not valid JSON")],
)
def test_a_broken_file_is_refused(tmp_path, content, said):
    path = tmp_path / "args.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=said):
        from_trainer(path, "glue")


def test_an_unknown_script_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="did you mean 'run_glue'"):
        from_trainer(["run_gleu.py", "--learning_rate", "1"])


OPTIONS = sorted({"task_name", *[name for script in SCRIPTS.values() for name in script.options]})
VALUE = st.sampled_from(
    ["", "1", "0", "-1", "2.5", "true", "False", "a b", "x=1,y", "[1]", "mrpc", "\x1b[31m", "1e400"]
)


@settings(max_examples=60, deadline=None)
@given(
    script=st.sampled_from(sorted(SCRIPTS)),
    options=st.dictionaries(st.sampled_from([*OPTIONS, "learning_rate", "optim", "fp16"]), VALUE, max_size=4),
)
def test_any_options_give_a_spec_that_only_lacks_something(tmp_path_factory, script, options):
    made = from_trainer([f"{script}.py", *(word for name, value in options.items() for word in (f"--{name}", value))])
    path = tmp_path_factory.mktemp("spec") / "spec.toml"
    path.write_text(made.text)
    found = {problem.code for problem in problems_of(path, installed())}
    assert found <= {"missing-key"}, made.text
