"""Tasks share an encoder and a mixture of rows, and each is trained and measured as it would be alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.loops import evaluated, gradients
from tests.support.textruns import Ready, ready, text_spec
from transformers import AutoModel, AutoModelForSequenceClassification

from taskrecipe.contrib.mixture import divide_proportionally
from taskrecipe.contrib.multitask import Multitask
from taskrecipe.data.load import load_data
from taskrecipe.errors import DataError, NonFiniteError, SpecError, UsageError
from taskrecipe.recipe import learned_values, reported_metrics, restore_learned, target_columns
from taskrecipe.recipes.glue import Glue
from taskrecipe.spec.resolve import resolve
from taskrecipe.spec.spec import Spec
from taskrecipe.testing import conformance

ROOT = Path(__file__).parents[2]

MRPC = {"recipe": "glue", "task": {"name": "mrpc"}}
COLA = {"recipe": "glue", "task": {"name": "cola"}}
STSB = {"recipe": "glue", "task": {"name": "stsb"}}
MNLI = {"recipe": "glue", "task": {"name": "mnli"}}
NAMES = {"recipe": "token_classification"}

test_it_conforms = conformance("multitask", tasks={"cola": COLA, "mrpc": MRPC})


def spec_of(tasks: dict[str, Any], **tables: Any) -> Spec:
    train = {"epochs": 1, "batch_size": 8, **tables.pop("train", {})}
    options = tables.pop("options", {})
    return text_spec("multitask", {"tasks": tasks, **options}, train=train, **tables)


def mixed(tasks: dict[str, Any], each: int = 11, **tables: Any) -> Ready:
    """A few rows of every task."""
    spec = spec_of(tasks, **tables)
    whole = ready(spec)
    rows = {split: found.select(range(min(len(found), each))) for split, found in whole.rows.items()}
    numbers = np.asarray(whole.rows["train"]["task"])
    first = np.concatenate([np.flatnonzero(numbers == number)[:each] for number in range(len(tasks))])
    return Ready(whole.recipe, {**rows, "train": whole.rows["train"].select(first)}, whole.source)


@pytest.fixture(scope="module")
def unlike() -> Ready:
    """Tasks with labels of three kinds: classes, numbers, and a class for each word."""
    return mixed({"names": NAMES, "pairs": MRPC, "likeness": STSB})


def test_accumulation_gives_the_gradients_of_one_batch(unlike):
    tasks = {"names": NAMES, "pairs": MRPC, "likeness": STSB}
    for update in (0, 4):
        whole, *others = (
            gradients(unlike.loop(spec_of(tasks, train={"accumulate": accumulate})), update) for accumulate in (1, 2, 4)
        )
        for split in others:
            assert max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)) < 1e-12


def test_all_rows_have_the_same_weight(unlike):
    loop = unlike.loop()
    update = next(loop.state.updates(0))
    loop.model.train()
    update.compute_gradients()
    recipe, batch = loop.objective.recipe, update.batches[0].inputs
    numbers = np.asarray(unlike.rows["train"].select(update.rows)["task"])
    means = recipe.loss(recipe.forward(loop.model, batch), batch, training=True)
    for number, name in enumerate(recipe.names):
        share = float(np.mean(numbers == number))
        assert update.counts[f"rows.{name}"] == share * len(update.rows)
        assert update.terms[name].item() == pytest.approx(share * means[name].item(), rel=1e-12)
    assert loop.objective.term_names(update.counts) == sorted(recipe.names)


def test_an_update_without_labels_is_named(unlike):
    update = next(unlike.loop().state.updates(0))
    update.counts |= dict.fromkeys(unlike.recipe.names, 0.0)
    with pytest.raises(NonFiniteError, match="update 1 has nothing to predict"):
        update.require_items()


def test_a_task_is_evaluated_as_if_it_were_alone(unlike):
    loop = unlike.loop()
    numbers = evaluated(loop)
    rows = unlike.recipe._own_rows(unlike.rows["pairs"], "pairs")
    own = Ready(unlike.recipe.tasks["pairs"], {"train": rows, "validation": rows}, unlike.source).loop()
    own.state.module.load_state_dict(loop.state.module.by_name()["pairs"].state_dict())
    for name, value in evaluated(own).items():
        assert numbers[f"pairs/{name}"] == pytest.approx(value, rel=1e-12)


def test_a_row_is_as_long_as_its_task_says(unlike):
    rows = unlike.rows["train"].shuffle(seed=0)
    columns = [f"{name}.input_ids" for name in unlike.recipe.names]
    assert unlike.recipe.lengths(rows) == [sum(len(row[column] or ()) for column in columns) for row in rows]


def test_a_task_answers_and_describes_as_if_it_were_alone(unlike):
    recipe, pairs = unlike.recipe, unlike.recipe.tasks["pairs"]
    row = unlike.rows["pairs"][0]
    own = recipe._own_rows(unlike.rows["pairs"], "pairs")[0]
    prediction = {"label": np.int64(1), "probabilities": np.array([0.25, 0.75])}
    assert recipe.answer(prediction, row) == pairs.answer(prediction, own)
    assert recipe.answer(prediction, row)["label"] == "equivalent"
    described = recipe.describe(recipe.example(row, np.random.default_rng(0), False))
    assert described.lines == pairs.describe(own).lines
    assert described.facts == {"task": "pairs", **pairs.describe(own).facts}


def test_targets_are_those_of_all_tasks(unlike):
    assert target_columns(unlike.recipe) == ["names.tags", "pairs.label", "likeness.label"]


def test_what_every_task_has_learned_is_kept_as_one_value(unlike):
    kept = json.loads(json.dumps(learned_values(unlike.recipe)))
    assert kept["learned_by_task"]["pairs"]["labels"] == ["not_equivalent", "equivalent"]
    other = Multitask(unlike.recipe.spec)
    assert other.tasks["names"].labels == []
    restore_learned(other, kept)
    assert other.tasks["names"].labels == unlike.recipe.tasks["names"].labels != []
    assert learned_values(other) == learned_values(unlike.recipe)


def test_the_mean_is_over_one_metric_of_each_task():
    run = mixed({"a": {**MRPC, "metric": "f1"}, "b": MNLI})
    loop = run.loop()
    numbers = evaluated(loop)
    of_b = (numbers["b/matched/accuracy"] + numbers["b/mismatched/accuracy"]) / 2
    assert numbers["mean"] == pytest.approx((numbers["a/f1"] + of_b) / 2)
    assert set(numbers) == set(reported_metrics(run.recipe))
    assert loop.best_metric == ("mean", "max")


def test_metrics_that_go_different_ways_have_no_mean():
    objections = Multitask(spec_of({"a": MRPC, "b": {**COLA, "metric": "loss"}})).objections()
    assert list(objections) == ["task.tasks"]
    assert "accuracy of a (max), loss of b (min) have no mean" in objections["task.tasks"]


def test_a_metric_that_a_task_does_not_report_is_refused_at_its_line(tmp_path):
    lines = (ROOT / "specs" / "contrib" / "multitask.toml").read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith('metric = "f1"'))
    lines[number] = 'metric = "f2"'
    (tmp_path / "spec.toml").write_text("\n".join(lines))
    with pytest.raises(SpecError) as refused:
        resolve(tmp_path / "spec.toml", ["evaluate.splits=['train']"])
    told = str(refused.value)
    assert f"spec.toml:{number + 1}:10: error[conflict]: [task.tasks.mrpc].metric is 'f2'; the task reports" in told
    assert "leave 'train' out of [evaluate].splits" in told


def test_there_is_one_encoder_and_a_head_each(unlike, tmp_path):
    module = unlike.loop().state.module
    models = module.by_name()
    assert len({id(model.base_model) for model in models.values()}) == 1
    assert models["names"].classifier is not models["pairs"].classifier
    module.save_pretrained(tmp_path)
    read = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pairs", dtype="float64")
    assert read.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    for name, value in read.state_dict().items():
        assert torch.equal(value, models["pairs"].state_dict()[name])
    encoder = AutoModel.from_pretrained(tmp_path, dtype="float64").state_dict()
    assert all(torch.equal(value, encoder[name]) for name, value in models["names"].base_model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "weights", "counts"),
    [
        ({"sampling": "temperature", "temperature": 2.0}, [None, None], [40, 60]),
        ({"sampling": "weights"}, [3.0, 1.0], [75, 25]),
    ],
)
def test_the_mixture_is_as_asked(options, weights, counts):
    tasks = {
        name: {**task, **({"weight": weight} if weight else {})}
        for (name, task), weight in zip({"a": MRPC, "b": COLA}.items(), weights, strict=True)
    }
    run = ready(spec_of(tasks, options=options))
    numbers = np.asarray(run.rows["train"]["task"])
    few = np.concatenate([np.flatnonzero(numbers == 0)[:31], np.flatnonzero(numbers == 1)[:69]])
    rows = run.rows["train"].select(few)
    drawn = np.asarray(run.recipe.draw(rows, np.random.default_rng(0)))
    assert [int((drawn < 31).sum()), int((drawn >= 31).sum())] == counts
    times = np.bincount(drawn, minlength=100)
    for mine in (times[:31], times[31:]):
        assert mine.max() - mine.min() <= 1
    assert np.array_equal(drawn, run.recipe.draw(rows, np.random.default_rng(0)))
    assert not np.array_equal(drawn, run.recipe.draw(rows, np.random.default_rng(1)))


def test_shares_add_up():
    assert divide_proportionally(10, np.array([1.0, 1.0, 1.0])) == [4, 3, 3]
    assert divide_proportionally(7, np.array([0.1, 0.9])) == [1, 6]


def write_jsonl(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def file_tasks(folder) -> dict[str, Any]:
    pairs = [{"first": f"the river {i}", "sentence2": "a stone", "label": i % 2} for i in range(8)]
    words = [{"tokens": ["the", f"river{i}"], "tags": ["O", "B-LOC"]} for i in range(6)]
    pair_files = {split: write_jsonl(folder / f"pairs-{split}.jsonl", pairs) for split in ("train", "validation")}
    word_files = {split: write_jsonl(folder / f"words-{split}.jsonl", words) for split in ("train", "validation")}
    columns = {"sentence1": "first"}
    return {
        "pairs": {
            "recipe": "glue",
            "task": {"name": "pair"},
            "data": {"files": pair_files, "columns": columns, "limit": {"train": 5}},
        },
        "words": {**NAMES, "task": {"max_length": 64}, "data": {"files": word_files}},
    }


def loaded(tasks, folder, **data):
    model = ready(spec_of({"a": MRPC, "b": COLA})).source.name
    spec = spec_of(tasks, model={"name": model}, data={"sample": False, **data})
    recipe = Multitask(spec)
    return recipe, load_data(spec, recipe, folder)


def test_every_task_reads_its_own_files(tmp_path):
    recipe, found = loaded(file_tasks(tmp_path), tmp_path)
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 11, "pairs": 8, "words": 6}
    assert found.splits["train"]["task"][:] == [0] * 5 + [1] * 6
    assert found.splits["train"][0]["pairs.sentence1"] == "the river 0"
    assert found.splits["train"][0]["words.tokens"] is None
    assert recipe.tasks["words"].labels == ["B-LOC", "O"]


def test_what_is_wrong_with_a_task_s_data_names_the_task(tmp_path):
    tasks = file_tasks(tmp_path)
    del tasks["pairs"]["data"]["columns"]
    with pytest.raises(DataError, match="'pairs': there are 2 problems:\\n  split 'train', column 'sentence1'"):
        loaded(tasks, tmp_path)
    del tasks["words"]["data"]
    tasks["pairs"]["data"]["columns"] = {"sentence1": "first"}
    with pytest.raises(DataError, match=r"'words': .* names neither a path nor files"):
        loaded(tasks, tmp_path)


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        ({"a": MRPC, "train": COLA}, {}, "no task can be called 'train'"),
        ({"a": MRPC, "b": {**COLA, "data": {"workers": 2}}}, {}, "'workers' holds for all tasks"),
        ({"a": MRPC, "b": COLA}, {"temperature": 2.0}, "'temperature' and sampling = \"temperature\" go together"),
        ({"a": MRPC, "b": COLA}, {"sampling": "weights"}, "'weight' of every task"),
    ],
)
def test_options_that_can_not_be_are_refused(tasks, options, message):
    with pytest.raises(ValueError, match=message):
        spec_of(tasks, options=options)


INNER = {"tasks": {"c": MRPC, "d": COLA}}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"recipe": "two_tower"}, "recipe 'two_tower' computes whole updates"),
        ({"recipe": "multitask", "task": INNER}, "recipe 'multitask' is made of several itself"),
    ],
)
def test_recipes_that_can_not_be_one_of_several_are_refused(choice, message):
    objections = Multitask(spec_of({"a": {**MRPC, "metric": "loss"}, "b": {**choice, "metric": "loss"}})).objections()
    assert list(objections) == ["task.tasks.b.recipe"]
    assert objections["task.tasks.b.recipe"].startswith(message)


def test_what_a_task_can_not_do_is_shown_at_its_place():
    class Picky(Glue):
        def objections(self):
            return {"task.max_length": "too long", "train.ema": "no"}

    recipe = Multitask(spec_of({"a": MRPC, "b": COLA}))
    recipe.tasks["b"] = Picky(recipe.tasks["b"].spec)
    assert recipe.objections() == {"task.tasks.b.task.max_length": "too long", "train.ema": "no"}


def test_models_that_share_no_encoder_are_refused():
    spec = spec_of({"a": MRPC, "b": {"recipe": "two_tower", "task": {"objective": "cosine"}}})
    run = ready(spec)
    with pytest.raises(UsageError, match="can't share an encoder: theirs are a "):
        run.loop()
