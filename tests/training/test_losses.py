"""Labels are smoothed in training, where there are classes, and never in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.textruns import ready, text_spec

from taskrecipe.cli.validate import problems_of
from taskrecipe.plugins.registry import installed

SMOOTHING = 0.3
TASKS: dict[str, dict[str, Any]] = {"glue": {"name": "mrpc"}, "token_classification": {}, "seq2seq": {}, "swag": {}}


@pytest.mark.parametrize("name", TASKS)
def test_labels_are_smoothed_in_training_only(name: str) -> None:
    spec = text_spec(name, TASKS[name], train={"label_smoothing": SMOOTHING}, schedule={"warmup": 0})
    loop = ready(spec, rows=6).loop()
    batch = next(loop.state.updates(0)).batches[0].inputs
    loop.model.train()
    recipe = loop.objective.recipe
    outputs = recipe.forward(loop.model, batch)
    trained = recipe.loss(outputs, batch, training=True)
    likelihoods = outputs.logits.log_softmax(-1).flatten(0, -2)
    labels = batch["labels"].flatten()
    kept = labels != -100
    right = likelihoods[kept].gather(1, labels[kept, None]).mean()
    expected = -((1 - SMOOTHING) * right + SMOOTHING * likelihoods[kept].mean())
    torch.testing.assert_close(trained["loss"], expected)
    measured = recipe.loss(outputs, batch, training=False)
    torch.testing.assert_close(measured["loss"], -right)


SPEC = """\
spec_version = 1
recipe = "glue"
task = { name = "TASK" }
model = { type = "bert" }
data = { path = "org/rows" }
train = { epochs = 1, learning_rate = 1e-4, label_smoothing = 0.1 }
"""


@pytest.mark.parametrize(("task", "codes"), [("mrpc", []), ("stsb", ["no-effect"])])
def test_a_number_is_no_label_to_smooth(task: str, codes: list[str], tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.replace("TASK", task))
    assert [problem.code for problem in problems_of(path, installed())] == codes
