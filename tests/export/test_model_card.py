from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomlkit
import yaml

from taskrecipe.export.model_card import write_card
from taskrecipe.export.run_card import make_card
from taskrecipe.export.tasks import find_pipeline
from taskrecipe.model import ModelSource
from taskrecipe.spec.resolve import Resolved, resolve

SPEC = """
spec_version = 1
recipe = "glue"
[task]
name = "single"
[model]
name = {model}
[data]
{data}
[train]
epochs = 1
batch_size = 8
learning_rate = 1e-3
"""
RESULTS: dict[str, Any] = {
    "name": "run",
    "data": "hub",
    "updates": 20,
    "best": {"metric": "accuracy", "value": 0.75, "step": 10, "metrics": {"accuracy": 0.75, "loss": 0.5}},
    "final": {"accuracy": 0.25, "loss": 0.9},
    "rows": {"train": 100, "validation": 10},
}


def _resolved(folder: Path, model: str = "owner/model", data: str = 'path = "owner/data"\nname = "part"') -> Resolved:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.toml").write_text(SPEC.format(model=json.dumps(model), data=data))
    return resolve(folder / "spec.toml")


def model_card(
    resolved: Resolved,
    results: dict[str, Any],
    hub: dict[str, str] | None = None,
    architecture: str | None = None,
    **more: Any,
) -> str:
    return write_card(make_card(resolved, {**results, "hub": hub or {}}, architecture=architecture, **more))


def metadata(card: str) -> dict[str, Any]:
    """What the hub reads of a card."""
    read: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return read


def test_the_metrics_are_those_of_the_exported_weights(tmp_path: Path):
    card = model_card(_resolved(tmp_path), RESULTS)
    assert "| metric | after update 10 |\n|---|---|\n| accuracy | 0.7500 |\n| loss | 0.5000 |\n" in card
    assert "after update 10, the best by accuracy" in card
    assert "0.2500" not in card


def test_without_a_best_they_are_those_of_the_last_update(tmp_path: Path):
    card = model_card(_resolved(tmp_path), RESULTS | {"best": None})
    assert "| metric | after update 20 |\n|---|---|\n| accuracy | 0.2500 |" in card


def test_hub_ids_are_named_with_their_commits(tmp_path: Path):
    card = model_card(_resolved(tmp_path), RESULTS, hub={"data": "d" * 40, "model": "e" * 40})
    assert "base_model: owner/model\n" in card
    assert "datasets:\n- owner/data\n" in card
    rows = "100 rows of train, 10 rows of validation"
    assert f"Data: owner/data, configuration part at commit {'d' * 40} ({rows})." in card
    assert f"Base model: owner/model at commit {'e' * 40}." in card


def test_no_path_of_the_machine_is_in_it(tmp_path: Path):
    folder, elsewhere = tmp_path / "specs", tmp_path / "models" / "mine"
    elsewhere.mkdir(parents=True)
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rows.csv").write_text("sentence,label\na,0\n")
    data = f'files = {{train = "data/rows.csv", validation = {json.dumps(str(folder / "data" / "rows.csv"))}}}'
    card = model_card(_resolved(folder, "../models/mine", data), RESULTS)
    assert str(tmp_path) not in card
    assert str(Path.home()) not in card
    assert "base_model" not in card
    spec = tomlkit.parse(card.split("```toml\n")[1].split("```")[0]).unwrap()
    assert spec["model"]["name"] == "../models/mine"
    assert spec["data"]["files"] == {"train": "data/rows.csv", "validation": "data/rows.csv"}


def test_the_spec_in_it_makes_the_same_run(tmp_path: Path):
    resolved = _resolved(tmp_path)
    (tmp_path / "again.toml").write_text(model_card(resolved, RESULTS).split("```toml\n")[1].split("```")[0])
    assert resolve(tmp_path / "again.toml").spec == resolved.spec


def test_sample_data_is_named_as_such(tmp_path: Path):
    card = model_card(_resolved(tmp_path), RESULTS | {"data": "sample"})
    assert "say nothing about the task" in card
    assert "base_model" not in card
    assert "datasets:" not in card


@pytest.mark.parametrize(
    ("architecture", "pipeline"),
    [
        ("BertForSequenceClassification", "text-classification"),
        ("GPT2LMHeadModel", "text-generation"),
        ("BertForMaskedLM", "fill-mask"),
        ("DetrForObjectDetection", "object-detection"),
        ("BertForMultipleChoice", None),
        ("OwnModel", None),
        (None, None),
    ],
)
def test_how_to_use_it(tmp_path: Path, architecture: str | None, pipeline: str | None):
    assert find_pipeline(architecture) == pipeline
    card = model_card(_resolved(tmp_path), RESULTS, architecture=architecture)
    if pipeline:
        assert f'pipeline("{pipeline}", model="model")' in card
        assert f"pipeline_tag: {pipeline}\n" in card
    else:
        assert 'run = Run("run")\nmodel = run.model()' in card
        assert "recipe predict run INPUT" in card


def test_how_to_talk_to_a_chat_model(tmp_path: Path):
    card = make_card(_resolved(tmp_path), {**RESULTS, "hub": {}}, architecture="GPT2LMHeadModel")
    assert '{"role": "user"' in write_card(replace(card, is_chat=True))
    assert '{"role": "user"' not in write_card(card)


def test_no_secret_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "canary-of-a-token")
    assert "canary" not in model_card(_resolved(tmp_path, "owner/canary-of-a-token"), RESULTS)


def test_the_hub_reads_each_metric_with_its_data_and_commit(tmp_path: Path):
    commits = {"data": "d" * 40, "model": "e" * 40}
    card = model_card(_resolved(tmp_path), RESULTS, hub=commits, architecture="BertForSequenceClassification")
    [index] = metadata(card)["model-index"]
    [result] = index["results"]
    assert index["name"] == "run"
    assert result["task"] == {"type": "text-classification"}
    data = {"type": "owner/data", "name": "owner/data", "config": "part", "split": "validation", "revision": "d" * 40}
    assert result["dataset"] == data
    assert [(metric["type"], metric["value"]) for metric in result["metrics"]] == [("accuracy", 0.75), ("loss", 0.5)]


def test_numbers_on_sample_data_are_not_told_to_the_hub(tmp_path: Path):
    card = model_card(_resolved(tmp_path), RESULTS | {"data": "sample"}, architecture="BertForSequenceClassification")
    assert "model-index" not in metadata(card)


@pytest.mark.parametrize(
    ("text", "license"),
    [
        ("---\nlicense: apache-2.0\n---\n# m\n", "apache-2.0"),
        ("---\nlicense: other\nlicense_name: mine\n---\n", "other"),
        ("# a card without metadata\n", None),
        ("---\nlicense: [\n---\n", None),
        ("---\n- a list\n---\n", None),
    ],
)
def test_the_license_is_the_base_models(tmp_path: Path, text: str, license: str | None):
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text(text)
    card = model_card(_resolved(tmp_path, "base"), RESULTS, source=ModelSource(str(base)))
    assert metadata(card).get("license") == license
    assert ("under the license" in card) == (license is not None)


def test_intervals_stand_beside_the_metrics_that_have_them(tmp_path: Path):
    (tmp_path / "predictions").mkdir()
    values = np.linspace(0.5, 1.0, 1001)
    pq.write_table(pa.table({"accuracy": values}), tmp_path / "predictions" / "validation.bootstrap.parquet")
    card = model_card(_resolved(tmp_path), RESULTS, folder=tmp_path)
    assert "| metric | after update 10 | 95 % interval |\n|---|---|---|\n" in card
    assert "| accuracy | 0.7500 | 0.5125 to 0.9875 |\n| loss | 0.5000 |  |\n" in card


def test_a_text_that_begins_like_a_path_stays(tmp_path: Path):
    resolved = _resolved(
        tmp_path, data='path = "owner/data"\ncolumns = {sentence = "/no/such/column"}\nseparator = "/"'
    )
    spec = tomlkit.parse(model_card(resolved, RESULTS).split("```toml\n")[1].split("```")[0]).unwrap()
    assert spec["data"]["columns"] == {"sentence": "/no/such/column"}
    assert spec["data"]["separator"] == "/"


def test_a_path_in_a_key_of_a_plugin_is_relative_too(tmp_path: Path):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "spec.toml").write_text(
        SPEC.format(model='"owner/model"', data='path = "owner/data"')
        + '[[techniques]]\nname = "distillation"\nteacher = "teacher"\n'
    )
    resolved = resolve(tmp_path / "spec.toml")
    assert resolved.spec.techniques[0].teacher == str(tmp_path / "teacher")
    card = model_card(resolved, RESULTS)
    assert 'teacher = "teacher"' in card
    assert str(tmp_path) not in card
