"""A trained run is loaded with exactly the weights that were evaluated, whichever of them is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.runs import write_spec

from taskrecipe import DamagedCheckpointError, Run, UsageError, train
from taskrecipe.data.load import load_data
from taskrecipe.training.evaluation import Evaluation
from taskrecipe.use.trained import Trained, load_trained

SETTINGS: dict[str, dict[str, Any]] = {
    "ema": {"train.ema": 0.7, "train.precision": "bf16"},
    "schedule-free": {"optimizer.name": "schedule_free", "schedule.name": "constant"},
    "technique": {"techniques": [{"name": "freeze", "layers": 1}]},
}


@pytest.fixture(scope="module", params=SETTINGS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    settings = {"checkpoint.keep": 9, "train.updates": 6, "evaluate.every": 2, **SETTINGS[request.param]}
    return train(write_spec(folder), set=settings, out=folder / "run", quiet=True)


def test_every_checkpoint_measures_as_it_was_logged(run: Run) -> None:
    logged = {line["step"]: line["metrics"] for line in run.log if line["event"] == "evaluate"}
    assert list(logged) == [2, 4, 6]
    for step, metrics in logged.items():
        trained = load_trained(run.folder, f"step-{step}")
        assert trained.step == step
        assert measure(trained) == metrics
    assert measure(load_trained(run.folder, "last")) == logged[6]


def test_the_best_is_what_was_exported(run: Run) -> None:
    best = run.results["best"]
    trained = load_trained(run.folder)
    assert (trained.step, trained.weights) == (best["step"], run.folder / "model")
    assert measure(trained) == best["metrics"]
    exported, checkpoint = trained.module.state_dict(), load_trained(run.folder, f"step-{best['step']}")
    assert all(torch.equal(exported[name], value) for name, value in checkpoint.module.state_dict().items())


def test_a_run_that_has_not_ended_has_weights_too(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.folder, copy)
    shutil.rmtree(copy / "model")
    (copy / "results.json").unlink()
    logged = {line["step"]: line["metrics"] for line in run.log if line["event"] == "evaluate"}
    for at, step in (("best", run.results["best"]["step"]), ("last", 6)):
        trained = load_trained(copy, at)
        assert trained.weights == copy / "checkpoints" / f"step-{step}"
        assert measure(trained) == logged[step]


def test_the_exported_model_needs_no_checkpoint(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.folder, copy)
    shutil.rmtree(copy / "checkpoints")
    assert measure(load_trained(copy)) == run.results["best"]["metrics"]


def test_better_weights_than_the_exported_ones_are_the_best(tmp_path: Path) -> None:
    """A run that was continued and killed: model/ is of the shorter run."""
    spec = write_spec(tmp_path)
    settings = {"checkpoint.keep": 9, "evaluate.every": 1, "evaluate.best": "loss"}
    train(spec, set={**settings, "train.updates": 2}, out=tmp_path / "run", quiet=True)
    (tmp_path / "run" / "checkpoints" / "best").write_text("step-1\n")
    assert load_trained(tmp_path / "run").step == 1


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    run = train(spec, set={"train.updates": 2, "evaluate.every": 1}, out=tmp_path / "run", quiet=True)
    with pytest.raises(UsageError, match="no checkpoint 'step-7'; there are: step-1, step-2"):
        load_trained(run.folder, "step-7")
    with pytest.raises(UsageError, match="it takes best, last, or step-N"):
        load_trained(run.folder, "newest")
    weights = run.folder / "checkpoints" / "step-2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors has changed"):
        load_trained(run.folder, "step-2")
    shutil.rmtree(run.folder / "checkpoints")
    shutil.rmtree(run.folder / "model")
    with pytest.raises(UsageError, match="has no best weights yet"):
        load_trained(run.folder)


def measure(trained: Trained) -> dict[str, float]:
    """Evaluate the validation rows of the run's spec as training does."""
    recipe, spec = trained.recipe, trained.spec
    with trained.on_device() as (accelerator, model):
        rows = load_data(spec, recipe, trained.folder / "sample").splits["validation"]
        made = recipe.preprocess(rows, "validation")
        running = Evaluation(recipe, "validation", made, spec.train.batch_size, 0, accelerator).run(model)
        while True:
            try:
                next(running)
            except StopIteration as finished:
                return dict(finished.value.metrics)
