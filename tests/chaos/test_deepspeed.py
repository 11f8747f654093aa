"""A run of two processes with DeepSpeed's ZeRO is the run of two that hold everything, up to rounding.

It resumes to the same bits, and its checkpoints are those of every other engine.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.support.commands import Zygote
from tests.support.processruns import Plan, exported_shapes
from tests.support.runs import bits, copy_as_of, log, resume, write_spec
from tests.support.worker_kills import train_undisturbed_and_killed

from taskrecipe.checkpoints.checkpoint import find_checkpoint
from taskrecipe.checkpoints.fingerprint import fingerprint

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed: the extra 'deepspeed'"),
]

STAGES = ("optimizer", "gradients", "full")
SHORT = {"train__updates": 4, "train__clip_norm": 0.1, "evaluate__every": 4, "checkpoint__every": 2, "data__workers": 0}
SMALL_PIECES = {"reduce_bucket_size": 1000, "sub_group_size": 5000, "stage3_param_persistence_threshold": 10}
SAMPLES = {
    "clm": ("specs/clm.toml", {"train__batch_size": 8, **SHORT}),
    "recomputed": ("specs/clm.toml", {"train__batch_size": 8, "train__gradient_checkpointing": True, **SHORT}),
    "bf16": ("specs/clm.toml", {"train__batch_size": 8, "train__precision": "bf16", **SHORT}),
    "lora": ("specs/contrib/lora.toml", {"train__batch_size": 8, **SHORT}),
    "detection": ("specs/detection.toml", {"train__batch_size": 4, "train__updates": 52, "data__workers": 0}),
    "seq2seq": ("specs/contrib/seq2seq.toml", {"train__batch_size": 8, **SHORT}),
    "lion": ("specs/clm.toml", {"train__batch_size": 8, "optimizer__name": "lion", **SHORT}),
    "sgd": ("specs/clm.toml", {"train__batch_size": 8, "optimizer__name": "sgd", **SHORT}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs: with an average of the weights, accumulation, dropout and a limit of the norm."""
    folder = tmp_path_factory.mktemp("deepspeed")
    spec, plan = write_spec(folder), Plan(folder)
    kept = {"checkpoint__keep": 100, "train__accumulate": 2, "train__ema": 0.9, "train__clip_norm": 0.5}
    torch_engine, zero = {"launch__engine": "torch"}, {"launch__engine": "deepspeed"}
    plan.train("replicas", spec, **kept)
    for stage in STAGES:
        plan.train(stage, spec, launch__shard=stage, **zero, **kept)
        plan.resume(f"{stage} again", stage, 5)
        plan.resume(f"{stage} to replicas", stage, 5, launch__shard="none", **torch_engine)
        plan.resume(f"{stage} to torch", stage, 5, launch__shard="full", **torch_engine)
        plan.resume(f"replicas to {stage}", "replicas", 4, launch__shard=stage, **zero)
    pieces = {f"launch__deepspeed__zero_optimization__{key}": value for key, value in SMALL_PIECES.items()}
    plan.train("pieces", spec, launch__shard="full", **zero, **pieces, **kept)
    plan.resume("gradients to full", "gradients", 5, launch__shard="full", **pieces)
    plan.execute(timeout=600)
    plan.resume("full on four", "full", 5)
    plan.execute(processes=4)
    return folder


def last(runs: Path, name: str) -> str:
    return fingerprint(find_checkpoint(runs / name / "checkpoints", "last").path)


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in log(run, "update")]


def weights(run: Path, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return find_checkpoint(run / "checkpoints", "last").tensors(file)


def require_close(one: Path, other: Path) -> None:
    """Require the same run, up to rounding: losses, metrics, weights, averages and the optimizer's state."""
    assert losses(one) == pytest.approx(losses(other), rel=1e-4)
    measured = [[line["metrics"]["loss"] for line in log(run, "evaluate")] for run in (one, other)]
    assert measured[0] == pytest.approx(measured[1], rel=1e-4)
    for file in ("model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        first, second = weights(one, file), weights(other, file)
        assert first.keys() == second.keys()
        assert max(float((first[key] - second[key]).abs().max()) for key in first) < 1e-4


@pytest.mark.parametrize("name", [*STAGES, "pieces", "full on four", "gradients to full"])
def test_it_ends_where_replicas_end(name: str, runs: Path) -> None:
    require_close(runs / name, runs / "replicas")


@pytest.mark.parametrize("stage", STAGES)
def test_a_resumed_run_ends_in_the_same_bits(stage: str, runs: Path) -> None:
    assert last(runs, f"{stage} again") == last(runs, stage)


@pytest.mark.parametrize("stage", STAGES)
def test_engines_continue_each_other(stage: str, runs: Path, zygote: Zygote) -> None:
    for name in (f"{stage} to replicas", f"{stage} to torch", f"replicas to {stage}"):
        require_close(runs / name, runs / "replicas")
        assert "changed since the checkpoint: launch.engine: " in _warnings(runs / name)
    assert last(runs, f"{stage} to replicas") == last(runs, f"{stage} to torch")
    alone = copy_as_of(runs / stage, 5, runs / f"{stage} alone")
    assert resume(zygote, alone, "--processes", "1").code == 0
    require_close(alone, runs / "replicas")


def _warnings(run: Path) -> str:
    return " ".join(line["message"] for line in log(run, "warning"))


def test_commands_read_the_checkpoints(runs: Path, zygote: Zygote) -> None:
    for stage in STAGES:
        assert bits(zygote, runs / stage) == last(runs, stage)
        done = zygote.run("evaluate", str(runs / stage), "--at", "last", cwd=runs)
        assert done.code == 0, done.stderr
        assert "equal to the logged ones" in done.stdout + done.stderr


@pytest.mark.parametrize("name", SAMPLES)
def test_recipes_end_where_replicas_end(name: str, tmp_path: Path) -> None:
    path, settings = SAMPLES[name]
    plan, spec = Plan(tmp_path), Path(path).absolute()
    common = {"report__enabled": False, **settings}
    plan.train("none", spec, sample=True, **common)
    for stage in ("gradients", "full"):
        plan.train(stage, spec, sample=True, launch__engine="deepspeed", launch__shard=stage, **common)
    plan.execute(timeout=500)
    for stage in ("gradients", "full"):
        assert losses(tmp_path / stage) == pytest.approx(losses(tmp_path / "none"), rel=1e-3)
        assert exported_shapes(tmp_path / stage) == exported_shapes(tmp_path / "none")


@pytest.mark.parametrize("stage", ["gradients", "full"])
def test_any_process_may_be_killed_at_any_moment(stage: str, zygote: Zygote, tmp_path: Path) -> None:
    settings = {"launch.engine": '"deepspeed"', "launch.shard": f'"{stage}"', "train.updates": "200"}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    whole, killed = train_undisturbed_and_killed(write_spec(tmp_path), *options, kills=4)
    assert bits(zygote, killed) == bits(zygote, whole)
