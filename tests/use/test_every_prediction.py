"""Predicting the validation rows without their targets gives the predictions that were scored, for every recipe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from datasets import Dataset

from taskrecipe import HasParts, Run, installed, train
from taskrecipe.data.load import load_data
from taskrecipe.recipe import target_columns
from taskrecipe.training.evaluation import Evaluation
from taskrecipe.training.setup import evaluation_batch_size
from taskrecipe.use.scores import merge_rows
from taskrecipe.use.trained import Trained

TASKS: dict[str, str] = {
    "glue": '[task]\nname = "mrpc"\n',
    "clm": "",
    "mlm": "",
    "swag": "",
    "mim": "",
    "detection": "",
    "image_classification": "",
    "semantic_segmentation": "",
    "instance_segmentation": "",
    "two_tower": "",
    "question_answering": "",
    "seq2seq": "",
    "token_classification": "",
    "chat": "",
    "preference": "",
    "reward": "",
    "multitask": "[task.tasks.mrpc]\nrecipe = 'glue'\ntask = {name = 'mrpc'}\n"
    "[task.tasks.tags]\nrecipe = 'token_classification'\n",
}
WHOLE_TEXTS = {"task.rows": "documents", "task.length": 128}
"""Each text of a sample is one row, so that rows of an evaluation are rows of the input."""
SETTINGS: dict[str, dict[str, Any]] = {"clm": WHOLE_TEXTS, "mlm": WHOLE_TEXTS}
SHORT = {"train.updates": 3, "train.batch_size": 16, "evaluate.every": 3, "schedule.warmup": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The runs that were made so far."""
    return {}


@pytest.fixture
def run(name: str, runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    if name not in runs:
        folder = tmp_path_factory.mktemp(name)
        (folder / "spec.toml").write_text(
            f'spec_version = 1\nrecipe = "{name}"\n{TASKS[name]}[train]\nlearning_rate=1e-3\n'
        )
        runs[name] = train(
            folder / "spec.toml", set={**SHORT, **SETTINGS.get(name, {})}, sample=True, out=folder / "run", quiet=True
        )
    return runs[name]


@pytest.mark.parametrize("name", TASKS)
def test_what_is_predicted_is_what_was_scored(run: Run, name: str) -> None:
    trained = run.load()
    for split, task in splits_of(trained):
        rows = load_data(trained.spec, trained.recipe, run.folder / "sample").splits[split]
        scored = scored_answers(trained, split, rows)
        given = without_targets(trained, rows, task)
        assert json.loads(json.dumps(run.predict(given, task=task))) == scored


@pytest.mark.parametrize("name", TASKS)
def test_the_batch_size_changes_no_byte(run: Run, name: str) -> None:
    """On a CPU, unless convolutions of another number of images are computed in another way."""
    trained = run.load()
    split, task = splits_of(trained)[0]
    rows = load_data(trained.spec, trained.recipe, run.folder / "sample").splits[split]
    given = without_targets(trained, rows, task)[:21]
    whole = run.predict(given, task=task)
    for batch_size in (1, 4, 7, 8, 64):
        assert as_rounded(run.predict(given, task=task, batch_size=batch_size), name) == as_rounded(whole, name)


def splits_of(trained: Trained) -> list[tuple[str, str | None]]:
    if isinstance(trained.recipe, HasParts):
        return [(task, task) for task in trained.recipe.parts()]
    return [("validation", None)]


def without_targets(trained: Trained, rows: Dataset, task: str | None) -> list[dict[str, Any]]:
    recipe = trained.recipe
    if isinstance(recipe, HasParts) and task:
        own = {name: name.removeprefix(f"{task}.") for name in rows.column_names if name.startswith(f"{task}.")}
        rows, recipe = rows.select_columns(list(own)).rename_columns(own), recipe.parts()[task]
    return list(rows.remove_columns([name for name in target_columns(recipe) if name in rows.column_names]))


def scored_answers(trained: Trained, split: str, rows: Dataset) -> list[Any]:
    """Evaluate rows with their targets as training does, and say each prediction as `answer` does."""
    recipe, spec = trained.recipe, trained.spec
    made = recipe.preprocess(rows, split)
    with trained.on_device() as (accelerator, model):
        running = Evaluation(recipe, split, made, evaluation_batch_size(spec), 0, accelerator).predict(model)
        while True:
            try:
                next(running)
            except StopIteration as finished:
                found = finished.value
                break
    return json.loads(json.dumps([recipe.answer(*merged) for merged in merge_rows(recipe, found, made)]))


def as_rounded(answers: list[Any], name: str) -> Any:
    """Return answers as JSON, with fewer digits where convolutions are in play."""
    digits = 3 if name in ("detection", "semantic_segmentation", "instance_segmentation") else None
    return json.loads(
        json.dumps(answers), parse_float=lambda text: round(float(text), digits) if digits else float(text)
    )


def test_the_runs_are_of_all_recipes() -> None:
    registry = installed()
    assert {name for name in registry.names("recipes") if registry.find("recipes", name).is_own} == set(TASKS)
