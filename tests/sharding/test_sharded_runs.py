"""A sharded run of two processes is the run of two that hold everything: the same bits, resumable as each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.support.commands import Zygote
from tests.support.processruns import Plan, run_module
from tests.support.runs import bits, copy_as_of, log, resume, train, write_spec

from taskrecipe.checkpoints.checkpoint import find_checkpoint
from taskrecipe.checkpoints.fingerprint import fingerprint

SHARDED = ("full", "gradients", "offloaded", "recomputed")
SHORT = {"train__updates": 4, "train__clip_norm": 0.0, "evaluate__every": 4, "checkpoint__every": 2, "data__workers": 0}
SAMPLES = {
    "clm": ("specs/clm.toml", {"train__batch_size": 8, **SHORT}),
    "detection": ("specs/detection.toml", {"train__batch_size": 4, "train__updates": 52, "data__workers": 0}),
    "lora": ("specs/contrib/lora.toml", {"train__batch_size": 8, **SHORT}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    folder = tmp_path_factory.mktemp("sharded")
    spec, plan = write_spec(folder), Plan(folder)
    kept = {"checkpoint__keep": 100, "train__accumulate": 2, "train__ema": 0.9, "launch__device": "cpu"}
    plan.train("replicas", spec, **kept)
    plan.train("full", spec, launch__shard="full", **kept)
    plan.train("gradients", spec, launch__shard="gradients", **kept)
    plan.train("offloaded", spec, launch__shard="full", launch__offload=True, **kept)
    plan.train("recomputed", spec, launch__shard="full", train__gradient_checkpointing=True, **kept)
    plan.resume("again", "full", 5)
    plan.resume("full to replicas", "full", 5, launch__shard="none")
    plan.resume("replicas to gradients", "replicas", 4, launch__shard="gradients")
    plan.train("bf16", spec, launch__shard="full", train__precision="bf16", **kept)
    plan.resume("bf16 again", "bf16", 3)
    plan.train("cut", spec, launch__shard="full", **{**kept, "train__accumulate": 4})
    plan.execute()
    return folder


def last(runs: Path, name: str) -> str:
    return fingerprint(find_checkpoint(runs / name / "checkpoints", "last").path)


def test_a_checkpoint_has_one_part_of_each_process_and_no_pickle(runs: Path) -> None:
    path = find_checkpoint(runs / "full" / "checkpoints", "last").path
    parts = [f"{kind}-0000{part}-of-00002.safetensors" for kind in ("ema", "model", "optimizer") for part in (1, 2)]
    assert {file.name for file in path.iterdir()} == {"MANIFEST.json", "identity.json", "state.json", *parts}
    sizes = [sum(len(t) for t in safetensors.torch.load_file(path / part).values() if t.ndim) for part in parts[2:4]]
    assert abs(sizes[0] - sizes[1]) < 0.2 * max(sizes)


@pytest.mark.parametrize("name", SHARDED)
def test_the_bits_are_those_of_replicas(name: str, runs: Path) -> None:
    assert last(runs, name) == last(runs, "replicas")


@pytest.mark.parametrize("name", SHARDED)
def test_what_is_exported_and_measured_is_the_same(name: str, runs: Path) -> None:
    """With an average of the weights, which is swapped in for evaluations and for the export."""
    model = "model/model.safetensors"
    assert (runs / name / model).read_bytes() == (runs / "replicas" / model).read_bytes()
    assert (runs / name / "model/config.json").read_text() == (runs / "replicas" / "model/config.json").read_text()
    measured = [[line["metrics"] for line in log(runs / each, "evaluate")] for each in (name, "replicas")]
    assert measured[0] == measured[1]
    assert not [path for path in (runs / name / "model").iterdir() if path.name.startswith(".")]


def test_dropout_follows_rows_however_an_update_is_cut(runs: Path) -> None:
    losses = [[line["loss"] for line in log(runs / name, "update")] for name in ("cut", "full")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_log_names_the_model_by_its_own_class(runs: Path) -> None:
    assert "BertForSequenceClassification, " in json.dumps(log(runs / "full", "about"))
    assert "FSDP" not in (runs / "full" / "log.jsonl").read_text()


@pytest.mark.parametrize("name", ["again", "full to replicas", "replicas to gradients"])
def test_a_resumed_run_ends_in_the_same_bits(name: str, runs: Path) -> None:
    assert last(runs, name) == last(runs, "full")


def test_a_resumed_run_in_bf16_ends_in_the_same_bits(runs: Path) -> None:
    assert last(runs, "bf16 again") == last(runs, "bf16")
    assert last(runs, "bf16") != last(runs, "full")


@pytest.mark.chaos
def test_other_numbers_of_processes_go_on_to_float_tolerance(runs: Path, zygote: Zygote) -> None:
    plan = Plan(runs)
    plan.resume("on four", "full", 5)
    plan.execute(processes=4)
    one = copy_as_of(runs / "full", 5, runs / "on one")
    assert resume(zygote, one, "--processes", "1").code == 0
    expected = [line["loss"] for line in log(runs / "full", "update")]
    for name in ("on four", "on one"):
        assert [line["loss"] for line in log(runs / name, "update")] == pytest.approx(expected, rel=1e-4)
        weights = [_weights(runs / each) for each in (name, "full")]
        assert weights[0].keys() == weights[1].keys()
        assert max(float((weights[0][key] - weights[1][key]).abs().max()) for key in weights[0]) < 1e-4


def _weights(run: Path) -> dict[str, torch.Tensor]:
    return find_checkpoint(run / "checkpoints", "last").tensors("model.safetensors")


def test_commands_read_the_checkpoints(runs: Path, zygote: Zygote) -> None:
    folder = runs / "full"
    assert bits(zygote, folder) == last(runs, "replicas")
    done = zygote.run("evaluate", str(folder), "--at", "last", cwd=runs)
    assert done.code == 0, done.stderr
    assert "equal to the logged ones" in done.stdout + done.stderr
    for name in ("full", "replicas"):
        options = ["validation.csv", "--at", "last", "-o", f"{name}.jsonl"]
        done = zygote.run("predict", str(runs / name), *options, cwd=runs)
        assert done.code == 0, done.stderr
    assert (runs / "full.jsonl").read_bytes() == (runs / "replicas.jsonl").read_bytes()
    done = zygote.run("export", str(folder), "--to", "hf", "-o", str(runs / "hf"), cwd=runs)
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.chaos) for name in ("clm", "detection")), "lora"]
)
def test_recipes_and_adapters_end_where_replicas_and_one_process_end(name: str, zygote: Zygote, tmp_path: Path) -> None:
    path, settings = SAMPLES[name]
    plan, spec = Plan(tmp_path), Path(path).absolute()
    for shard in ("none", "full"):
        plan.train(shard, spec, sample=True, launch__shard=shard, report__enabled=False, **settings)
    plan.execute()
    if name != "detection":  # the optimizer's kernel rounds the last numbers of a piece of memory in another way
        assert last(tmp_path, "full") == last(tmp_path, "none")
    options = [part for key, value in settings.items() for part in _option(key, value)]
    done = zygote.run("run", str(spec), "--sample", "--out", str(tmp_path / "one"), *options, cwd=tmp_path)
    assert done.code == 0, done.stderr
    losses = [[line["loss"] for line in log(tmp_path / each, "update")] for each in ("one", "full")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def _option(key: str, value: Any) -> tuple[str, str]:
    return "--set", f"{key.replace('__', '.')}={json.dumps(value)}"


def test_a_model_that_is_not_sharded_says_nothing_of_shards(zygote: Zygote, tmp_path: Path) -> None:
    folder = train(zygote, write_spec(tmp_path), "alone", "--set", 'launch.shard="full"')
    files = {path.name for path in find_checkpoint(folder / "checkpoints", "last").path.iterdir()}
    assert "model.safetensors" in files


@pytest.mark.chaos
def test_processes_share_the_statistics_of_batch_norms() -> None:
    found = run_module("tests.support.norm_process")
    assert found["full"] == found["none"]
    assert found["full"][0] == found["full"][1]
