"""Recipes around another one: named in the spec, checked in place, and left alone where nothing is to be changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from textruns import Ready, ready, text_spec

from taskrecipe.core.cli.validate import problems_of
from taskrecipe.core.model import ModelSource
from taskrecipe.core.registry import installed
from taskrecipe.core.training.batches import Preparation

GLUE = {"recipe": "glue", "task": {"name": "mrpc"}}

SPEC = """\
spec_version = 1
recipe = "distillation"

[task]
teacher = "org/teacher"

[task.inner]
recipe = "adversarial"

[task.inner.task]
epsilon = 0.5

[task.inner.task.inner]
recipe = "glue"

[task.inner.task.inner.task]
name = "mrpc"
max_length = 64

[model]
name = "org/model"

[data]
path = "org/rows"

[train]
epochs = 1
learning_rate = 1e-4
"""

WRONG = {
    "a key of the outer recipe": ("teacher =", "teachr =", 5, 1, "unknown-key", "teacher"),
    "a key of the inner one": ("epsilon", "epsilom", 11, 1, "unknown-key", "epsilon"),
    "a key of the innermost": ("max_length", "max_lenght", 18, 1, "unknown-key", "max_length"),
    "a recipe": ('"glue"', '"glu"', 14, 10, "unknown-recipe", "glue"),
    "a type": ("= 64", '= "64"', 18, 14, "wrong-type", "64"),
    "a value": ('"mrpc"', '"mrcp"', 17, 8, "unknown-value", "mrpc"),
}


@pytest.mark.parametrize("extended", [False, True], ids=["itself", "extended"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_within_is_shown_in_its_place(name: str, extended: bool, tmp_path: Path) -> None:
    found, wrong, *expected = WRONG[name]
    (tmp_path / "spec.toml").write_text(SPEC.replace(found, wrong))
    (tmp_path / "child.toml").write_text('extends = "spec.toml"\n[task.inner.task]\nmethod = "fgm"\n')
    problems = problems_of(tmp_path / ("child.toml" if extended else "spec.toml"), installed())
    places = [(p.line, p.column, p.code, p.suggestion) for p in problems if Path(p.file).name == "spec.toml"]
    assert places == [tuple(expected)]
    assert len(problems) == 1


def test_what_a_child_gets_wrong_is_shown_there(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    child = 'extends = "spec.toml"\n\n[task.inner.task.inner.task]\n  max_length = true\n  regresion = false\n'
    (tmp_path / "child.toml").write_text(child)
    problems = problems_of(tmp_path / "child.toml", installed())
    assert {Path(p.file).name for p in problems} == {"child.toml"}
    assert [(p.line, p.column, p.code) for p in problems] == [(4, 16, "wrong-type"), (5, 3, "unknown-key")]
    assert problems[1].suggestion == "regression"


def prepared(task: dict[str, Any]) -> Preparation:
    run = ready(text_spec("adversarial", task), rows=4)
    return Preparation(run.recipe, run.rows["train"], training=True)


def test_rows_are_looked_at_one_by_one_only_where_the_inner_recipe_does() -> None:
    assert not prepared({"inner": GLUE}).varies
    assert prepared({"inner": {"recipe": "mlm"}}).varies


def nested(**task: Any) -> Ready:
    inner = {"recipe": "adversarial", "task": {"inner": GLUE}}
    return ready(text_spec("distillation", {"teacher": "none", "inner": inner, **task}), rows=8)


def test_a_teacher_with_labels_in_another_order_leaves_the_student_s_alone(tmp_path: Path) -> None:
    run = nested()
    shutil.copytree(Path(str(run.source.name)), tmp_path / "model")
    path = tmp_path / "model" / "teacher" / "config.json"
    names = ["equivalent", "not_equivalent"]
    flipped = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **flipped}))
    run.recipe.load_model(ModelSource(str(tmp_path / "model")))
    assert run.recipe.labels == ["not_equivalent", "equivalent"]
    assert run.recipe.teacher_order == [1, 0]


def test_a_teacher_counts_once_beside_several_terms() -> None:
    loop = nested(mix=1.0).loop()
    loop.model.train()
    terms = loop.recipe.loss(loop.model, next(loop.updates(0)).batches[0].inputs).terms
    assert set(terms) == {"loss", "loss_adversarial"}
    assert terms["loss"] > 0.01
    assert terms["loss_adversarial"] == 0.0
