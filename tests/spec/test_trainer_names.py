"""Settings of the Hugging Face Trainer lead to our keys, with values converted."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe.cli.validate import problems_of
from taskrecipe.errors import SpecError
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.key_path import remove_values, replace_value
from taskrecipe.spec.layers import Layers
from taskrecipe.spec.sources import Source
from taskrecipe.spec.trainer_names import COUNTERPARTS, NOT_NEEDED
from taskrecipe.spec.validation import validate_layers

GLUE = {
    "spec_version": 1,
    "recipe": "glue",
    "task": {"name": "mrpc"},
    "model": {"name": "some/model"},
    "data": {"path": "some/data"},
    "train": {"epochs": 1, "learning_rate": 1e-3},
}

LINES = [
    ("num_train_epochs = 3.0", "train.epochs = 3"),
    ("max_steps = 100", "train.updates = 100"),
    ("max_steps = -1", None),
    ("per_device_train_batch_size = 8", "train.batch_size = 8"),
    ("per_device_train_batch_size = 8\ngradient_accumulation_steps = 4", "train.batch_size = 32"),
    ("gradient_accumulation_steps = 4", "train.accumulate = 4"),
    ("per_device_eval_batch_size = 64", "evaluate.batch_size = 64"),
    ("lr = 2e-5", "train.learning_rate = 2e-05"),
    ('lr = "2e-5"', "train.learning_rate = 2e-05"),
    ("fp16 = true", 'train.precision = "fp16"'),
    ("bf16 = true", 'train.precision = "bf16"'),
    ("bf16 = false", 'train.precision = "no"'),
    ("warmup_ratio = 0.1", "schedule.warmup = 0.1"),
    ("warmup_steps = 500", "schedule.warmup = 500"),
    ("max_grad_norm = 0.5", "train.clip_norm = 0.5"),
    ('lr_scheduler_type = "cosine"', 'schedule.name = "cosine"'),
    ('lr_scheduler_type = "no such"', None),
    ('optim = "adamw_torch_fused"', 'optimizer.name = "adamw"'),
    ("adam_beta2 = 0.98", "optimizer.beta2 = 0.98"),
    ("logging_steps = 50", "log.every = 50"),
    ("save_steps = 50", "checkpoint.every = 50"),
    ("eval_steps = 50", "evaluate.every = 50"),
    ("eval_steps = 0.1", None),
    ('save_strategy = "epoch"', 'checkpoint.every = "epoch"'),
    ("save_total_limit = 3", "checkpoint.keep = 3"),
    ('metric_for_best_model = "eval_f1"', 'evaluate.best = "f1"'),
    ("label_smoothing_factor = 0.1", "train.label_smoothing = 0.1"),
    ("torch_compile = true", "train.compile = true"),
    ("dataloader_num_workers = 4", "data.workers = 4"),
    ('dataset_config_name = "mrpc"', 'data.name = "mrpc"'),
    ("max_seq_length = 128", "task.max_length = 128"),
    ("max_train_samples = 100", "data.limit.train = 100"),
    ('train_file = "a.csv"', 'data.files.train = "a.csv"'),
    ('report_to = ["wandb"]', 'track.name = "wandb"'),
    ("use_cpu = true", 'launch.device = "cpu"'),
]


def without(keys: dict) -> dict:
    """Return the spec without values of these keys, so that a suggestion can set them."""
    return remove_values(GLUE, [tuple(COUNTERPARTS[name].key.split(".")) for name in keys])


WRONG_VALUE = {"wrong-type", "unknown-key", "out-of-range", "unknown-value", "invalid-value"}
WRONG_VALUE |= {"unknown-optimizer", "unknown-schedule", "unknown-tracker"}


def problems_of_values(values: dict):
    try:
        validate_layers(Layers([Source("spec.toml", "", values, Path("/"), "file")]), installed())
    except SpecError as error:
        return error.problems
    return []


def findings_of(values: dict):
    problems = problems_of_values(values)
    assert problems
    return problems


@pytest.mark.parametrize("table", ["", "train"])
@pytest.mark.parametrize(("line", "ours"), LINES)
def test_a_setting_of_the_trainer_leads_to_our_line(line, ours, table):
    given_keys = tomllib.loads(line)
    base = without(given_keys)
    values = {**base, "train": {**base["train"], **given_keys}} if table else {**base, **given_keys}
    found = {
        problem.message.split("'")[1]: problem for problem in findings_of(values) if problem.code == "trainer-name"
    }
    assert found.keys() == given_keys.keys()
    assert found[next(iter(given_keys))].suggestion == ours


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_a_setting_that_is_not_needed_is_named_with_the_reason(name):
    [problem] = findings_of({**GLUE, name: True})
    assert problem.code == "trainer-name"
    assert NOT_NEEDED[name] in problem.message


VALUES = st.one_of(
    st.integers(-5, 2**70),
    st.floats(),
    st.booleans(),
    st.text(max_size=9),
    st.sampled_from(["epoch", "no", "steps", "adamw_torch", "cosine", "eval_f1", "fp16", "wandb", "3", "1e-5"]),
    st.just([]),
    st.just({}),
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(COUNTERPARTS)), value=VALUES)
def test_every_line_that_is_suggested_is_valid(name, value):
    base = without([name])
    for problem in findings_of({**base, name: value}):
        if problem.code != "trainer-name" or problem.suggestion is None:
            continue
        key, _, text = problem.suggestion.partition(" = ")
        assert key == COUNTERPARTS[name].key
        path = tuple(key.split("."))
        better = replace_value(base, path, tomllib.loads(f"x = {text}")["x"])
        assert not {one.code for one in problems_of_values(better)} & WRONG_VALUE


def test_every_name_leads_to_a_key_that_exists():
    for name, counterpart in COUNTERPARTS.items():
        if name in ("learning_rate", "weight_decay", "gradient_checkpointing", "max_length"):
            continue  # our name is the same: it is only in the wrong table
        codes = {problem.code for problem in findings_of({**without([name]), name: 1})}
        assert "trainer-name" in codes, counterpart


@pytest.mark.parametrize("line", ["learning_rate = 1e-3", "weight_decay = 0.1", "gradient_checkpointing = true"])
def test_a_name_that_is_also_ours_is_sent_to_its_table(line):
    [key] = given_key = tomllib.loads(line)
    [problem] = findings_of({**without(given_key), **given_key})
    assert (problem.code, problem.suggestion) == ("wrong-table", COUNTERPARTS[key].key)


SPEC = """\
spec_version = 1
recipe = "glue"
{top}
[task]
name = "mrpc"
[model]
name = "some/model"
[data]
path = "some/data"
[train]
epochs = 1
learning_rate = 1e-3
batch_size = 32
{train}
"""


def problems_in(folder: Path, top: str = "", train: str = ""):
    path = folder / "spec.toml"
    path.write_text(SPEC.format(top=top, train=train))
    return problems_of(path, installed())


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("batch_size = 8", "duplicate-key", "'batch_size' is set in [train] already, line 13; remove it here"),
        ("learning_rate = 1", "duplicate-key", "'learning_rate' is set in [train] already, line 12; remove it here"),
        ("per_device_train_batch_size = 8", "trainer-name", "which is set in [train] already, line 13; remove it"),
        ("lr = 8", "trainer-name", "which is set in [train] already, line 12; remove it here"),
    ],
)
def test_a_key_that_is_also_set_where_it_belongs_is_a_duplicate(tmp_path, line, code, said):
    [problem] = problems_in(tmp_path, line)
    assert (problem.code, problem.line, problem.suggestion) == (code, 3, None)
    assert said in problem.message


def test_a_key_that_only_a_parent_has_is_suggested_to_its_child(tmp_path):
    (tmp_path / "base.toml").write_text(SPEC.format(top="", train=""))
    child = tmp_path / "child.toml"
    child.write_text('extends = "base.toml"\nbatch_size = 8\nlr = 1e-4\n[train]\nlearning_rat = 1e-3\nbatch_siz = 4\n')
    found = [(problem.code, problem.suggestion) for problem in problems_of(child, installed())]
    assert found == [
        ("wrong-table", "train.batch_size"),
        ("trainer-name", "train.learning_rate = 0.0001"),
        ("unknown-key", "learning_rate"),
        ("unknown-key", "batch_size"),
    ]
