"""`Run.model()` and `Run.recipe` are the model and recipe that were trained, loaded from the folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.runs import log

from taskrecipe import Run, UsageError, train

SPECS: dict[str, str] = {
    "glue": 'recipe = "glue"\n[task]\nname = "mrpc"\n',
    "image_classification": 'recipe = "image_classification"\n',
    "two_tower": 'recipe = "two_tower"\n',
    "swag": 'recipe = "swag"\n',
}
SHORT = {"train.updates": 3, "evaluate.every": 1}
REST = """\
[data]
sample = true
[train]
epochs = 1
learning_rate = 1e-3
[checkpoint]
keep = 9
[log]
every = 1
"""


@pytest.mark.parametrize("name", SPECS)
def test_the_trained_model_is_loaded_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text("spec_version = 1\n" + SPECS[name] + REST)
    run = Run(train("spec.toml", set=SHORT, quiet=True).folder)
    assert run.folder == Path("runs/spec-sample")
    model = run.model()
    assert not model.training
    assert same_weights(model.state_dict(), run.folder / "checkpoints" / f"step-{run.results['best']['step']}")
    evaluated = [line for line in run.log if line["event"] == "evaluate"]
    assert evaluated == log(run.folder, "evaluate")
    assert predict(run, model) == predict(run, model)


def same_weights(found: dict[str, Any], checkpoint: Path) -> bool:
    from safetensors.torch import load_file

    saved = load_file(checkpoint / "model.safetensors")
    # Tied weights are stored once.
    return bool(saved) and all(torch.equal(found[key], value) for key, value in saved.items())


def predict(run: Run, model: torch.nn.Module) -> list[Any]:
    """Answer two rows of the sample, without their targets."""
    import numpy as np

    from taskrecipe.recipe import target_columns

    recipe = run.recipe
    rows = recipe.sample(run.folder.absolute() / "again")["validation"].select(range(2))
    rows = rows.remove_columns([name for name in target_columns(recipe) if name in rows.column_names])
    made = recipe.preprocess(rows, "validation")
    random = np.random.default_rng(0)
    batch = recipe.collate([recipe.example(row, random, training=False) for row in made])
    with torch.no_grad():
        predictions = recipe.predict(recipe.forward(model, batch), batch)
    found = [{name: values[number] for name, values in predictions.items()} for number in range(len(made))]
    return [recipe.answer(one, row) for one, row in zip(found, made, strict=True)]


def test_labels_come_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text("spec_version = 1\n" + SPECS["glue"] + REST)
    run = train("spec.toml", set=SHORT, out="run", quiet=True)
    assert run.recipe.labels == ["not_equivalent", "equivalent"]
    assert run.recipe.positive == "equivalent"
    assert all(answer["label"] in run.recipe.labels for answer in predict(run, run.model()))


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a run"):
        Run(tmp_path)
