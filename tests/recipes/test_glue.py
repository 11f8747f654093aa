from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from tests.support.loops import evaluated, trained
from tests.support.textruns import ready, same_splits, text_spec

from taskrecipe.data.load import load_data
from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed
from taskrecipe.recipes.glue import TASKS
from taskrecipe.spec.resolve import resolve
from taskrecipe.text import vocabulary, write_tiny_bert

SPECS = Path(__file__).parents[2] / "specs" / "glue"
CLASSES = [name for name, task in TASKS.items() if task.labels]


def prepared(name: str, rows: Any, **task: Any):
    return ready(text_spec("glue", {"name": name, **task}), same_splits(rows))


def single(*labels: Any) -> list[dict[str, Any]]:
    return [{"sentence": "the sailor waits", "label": label} for label in labels]


def with_labels_in(order: list[str], folder: Path) -> ModelSource:
    """A model that was trained with these labels."""
    write_tiny_bert(folder, vocabulary(), id2label=dict(enumerate(order)))
    return ModelSource(str(folder))


# Metrics -------------------------------------------------------------------------------------------------

EXPECTED = {
    "accuracy": accuracy_score,
    "matthews_correlation": matthews_corrcoef,
    "f1": lambda right, predicted: f1_score(right, predicted, pos_label=1),
    "macro_f1": lambda right, predicted: f1_score(right, predicted, average="macro"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_scored_as_scikit_learn_does(name):
    made = ready(text_spec("glue", {"name": name}), rows=12)
    random = np.random.default_rng(0)
    right, predicted = random.integers(0, len(TASKS[name].labels), (2, 200))
    numbers = made.recipe.score({"label": predicted}, Dataset.from_dict({"labels": right}))
    assert numbers == pytest.approx({metric: EXPECTED[metric](right, predicted) for metric in TASKS[name].metrics})
    assert list(numbers) == list(made.recipe.metrics())


@pytest.mark.parametrize(("name", "regression"), [("stsb", False), ("single", True)])
def test_numbers_are_scored_as_scipy_does(name, regression):
    made = ready(text_spec("glue", {"name": name, "regression": regression}), rows=12)
    predicted, right = np.random.default_rng(0).normal(size=(2, 50))
    expected = {
        "pearson": pearsonr(right, predicted).statistic,
        "spearman": spearmanr(right, predicted).statistic,
        "mse": np.mean((right - predicted) ** 2),
    }
    numbers = made.recipe.score({"value": predicted}, Dataset.from_dict({"labels": right}))
    assert numbers == pytest.approx({metric: expected[metric] for metric in made.recipe.metrics()})


def test_each_task_reports_what_glue_says():
    said = {
        "cola": {"matthews_correlation"},
        "stsb": {"pearson", "spearman"},
        **{name: {"accuracy", "f1"} for name in ("mrpc", "qqp")},
        **{name: {"accuracy"} for name in ("sst2", "mnli", "qnli", "rte", "wnli")},
    }
    assert {name: set(TASKS[name].metrics) for name in said} == said


def test_mnli_reports_each_split_under_its_own_name():
    made = ready(text_spec("glue", {"name": "mnli"}), rows=60)
    loop = made.loop()
    numbers = evaluated(loop)
    assert list(numbers) == ["matched/accuracy", "matched/loss", "mismatched/accuracy", "mismatched/loss"]
    for split in ("matched", "mismatched"):
        batch = made.recipe.collate(list(made.rows[split]))
        with torch.no_grad():
            outputs = loop.state.module.eval()(**batch)
        expected = (outputs.logits.argmax(-1) == batch["labels"]).double().mean().item()
        assert numbers[f"{split}/accuracy"] == pytest.approx(expected)
        assert numbers[f"{split}/loss"] == pytest.approx(outputs.loss.item())
    assert numbers["matched/loss"] != numbers["mismatched/loss"]


# Labels --------------------------------------------------------------------------------------------------


def test_labels_are_compared_by_name_however_they_are_stored():
    named = Dataset.from_list(single(0, 1, 2)).cast_column("label", ClassLabel(names=["no", "maybe", "yes"]))
    splits = {"train": named, "validation": Dataset.from_list(single("yes", "no", "maybe"))}
    made = ready(text_spec("glue", {"name": "single"}), splits)
    assert made.recipe.labels == ["no", "maybe", "yes"]
    assert list(made.rows["validation"]["labels"]) == [2, 0, 1]


def test_a_model_that_knows_the_labels_in_another_order_keeps_it(tmp_path):
    order = ["Equivalent", "not_equivalent"]
    made = ready(text_spec("glue", {"name": "mrpc"}), rows=12)
    recipe, before = made.recipe, list(made.rows["train"]["labels"])
    sample = recipe.sample(tmp_path / "sample")
    recipe.processor = recipe.load_processor(with_labels_in(order, tmp_path))
    assert recipe.labels == ["equivalent", "not_equivalent"]
    after = list(recipe.preprocess(sample["train"].select(range(12)), "train")["labels"])
    assert after == [1 - label for label in before]
    # F1 is still that of "equivalent", which is now class 0.
    right, predicted = np.random.default_rng(1).integers(0, 2, (2, 50))
    numbers = recipe.score({"label": predicted}, Dataset.from_dict({"labels": right}))
    assert numbers["f1"] == pytest.approx(f1_score(right, predicted, pos_label=0))


def pairs(*labels: object) -> list[dict[str, object]]:
    return [{"sentence1": f"text {i}", "sentence2": "another", "label": label} for i, label in enumerate(labels)]


def test_numbers_of_a_glue_task_get_its_names():
    splits = {"train": Dataset.from_list(pairs(1, 0, 1)), "validation": Dataset.from_list(pairs("equivalent"))}
    made = ready(text_spec("glue", {"name": "mrpc"}), splits)
    assert made.recipe.labels == ["not_equivalent", "equivalent"]
    assert [list(made.rows[split]["labels"]) for split in splits] == [[1, 0, 1], [1]]


@pytest.mark.parametrize(
    ("label", "message"), [(-1, "-1 usually means that the label is not published"), (7, "7 is not the number of a")]
)
def test_a_number_of_no_class_is_named(label, message):
    splits = {"train": Dataset.from_list(pairs(1, 0)), "validation": Dataset.from_list(pairs(0, label))}
    with pytest.raises(DataError, match=f"row 1.*{message}"):
        ready(text_spec("glue", {"name": "mrpc"}), splits)


def test_other_numbers_of_a_glue_task_and_those_of_own_data_are_their_names():
    assert prepared("single", single(1, 0)).recipe.labels == ["0", "1"]
    splits = dict.fromkeys(("train", "validation"), Dataset.from_list(pairs(1, 0, 4)))
    assert ready(text_spec("glue", {"name": "mrpc"}), splits).recipe.labels == ["0", "1", "4"]


def test_other_labels_of_the_model_are_not_trusted(tmp_path):
    recipe = prepared("single", single("no", "yes")).recipe
    recipe.load_processor(with_labels_in(["negative", "positive"], tmp_path))
    assert recipe.labels == ["no", "yes"]


@pytest.mark.parametrize("name", ["mrpc", "mnli"])
def test_label_names_are_saved_with_the_model(name, tmp_path):
    ready(text_spec("glue", {"name": name}), rows=12).loop().state.module.save_pretrained(tmp_path)
    config = ModelSource(str(tmp_path)).config()
    assert config.id2label == dict(enumerate(TASKS[name].labels))
    assert config.label2id == {label: i for i, label in enumerate(TASKS[name].labels)}


# One's own data ------------------------------------------------------------------------------------------


def test_pairs_are_seen_as_pairs():
    made = prepared("pair", [{"sentence1": "a sailor", "sentence2": "the farmer", "label": label} for label in (0, 1)])
    assert made.recipe.processor.decode(made.rows["train"][0]["input_ids"]) == "[CLS] a sailor [SEP] the farmer [SEP]"
    assert made.rows["train"][0]["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_rows_are_cut_off_at_the_length_asked_for():
    assert len(prepared("single", single(0, 1), max_length=3).rows["train"][0]["input_ids"]) == 3


@pytest.mark.parametrize("labels", [(1, 3, 2, 5), (1.5, 3.0, -100.0, 5.0)], ids=["whole", "fractions"])
def test_any_numbers_can_be_predicted(labels):
    """Files hold integers and doubles; a model's numbers are floats. -100 is a number like any other here."""
    made = prepared("single", single(*labels), regression=True)
    loop = made.loop(text_spec("glue", {"name": "single", "regression": True}, train={"epochs": 1}), torch.float32)
    batch = made.recipe.collate(list(made.rows["train"]))
    assert made.recipe.loss_counts(batch) == {"loss": 4.0}
    assert trained(loop)["mse"] == pytest.approx(evaluated(loop)["loss"], rel=1e-5)


def test_the_spec_for_ones_own_file_reads_it(tmp_path):
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "category", "date"])
        writer.writerows([f"sentence {i}", ["billing", "delivery", "other"][i % 3], "today"] for i in range(30))
    write_tiny_bert(tmp_path / "model", vocabulary())
    sets = [f"data.files.train='{tmp_path / 'mine.csv'}'", f"model.name='{tmp_path / 'model'}'"]
    spec = resolve(SPECS / "own_csv.toml", sets).spec
    recipe = installed().recipe(spec.recipe)(spec)
    loaded = load_data(spec, recipe, tmp_path)
    assert {split: len(rows) for split, rows in loaded.splits.items()} == {"train": 27, "validation": 3}
    assert recipe.labels == ["billing", "delivery", "other"]


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"])
def test_every_task_has_a_spec(name):
    spec = resolve(SPECS / f"{name}.toml").spec
    assert (spec.recipe, spec.task.name, spec.data.path, spec.data.name) == ("glue", name, "nyu-mll/glue", name)
    assert spec.data.offline == "sample"


# Answers and descriptions ---------------------------------------------------------------------------------


def test_a_class_is_answered_by_its_name_with_all_probabilities():
    recipe = prepared("single", single("no", "yes", "maybe")).recipe
    answer = recipe.answer({"label": np.int64(2), "probabilities": np.array([0.25, 0.25, 0.5])}, {})
    assert answer == {
        "label": recipe.labels[2],
        "probabilities": dict(zip(recipe.labels, [0.25, 0.25, 0.5], strict=True)),
    }


def test_a_number_is_answered_as_it_is():
    recipe = prepared("single", single(1.0, 2.0), regression=True).recipe
    assert recipe.answer({"value": np.float32(1.5)}, {}) == {"value": 1.5}


@pytest.mark.parametrize(("labels", "regression", "shown"), [(("no", "yes"), False, "yes"), ((1.0, 2.5), True, "2.5")])
def test_a_row_is_described_by_its_tokens_and_its_label(labels, regression, shown):
    made = prepared("single", single(*labels), regression=regression)
    row = made.rows["train"][1]
    described = made.recipe.describe(row)
    assert [[(piece.text, piece.role) for piece in line] for line in described.lines] == [
        [("[CLS]", "special"), ("the", "context"), ("sailor", "context"), ("waits", "context"), ("[SEP]", "special")]
    ]
    assert described.facts == {"label": shown}
    del row["labels"]
    assert made.recipe.describe(row).facts == {}


@pytest.mark.parametrize("regression", [False, True])
def test_rows_without_a_label_are_checked_and_preprocessed(regression):
    made = prepared("single", single(1, 2), regression=regression)
    bare = Dataset.from_list([{"sentence": "the sailor waits"}] * 3)
    made.recipe.check(bare, "test")
    rows = made.recipe.preprocess(bare, "test")
    assert len(rows) == 3
    assert "labels" not in rows.column_names
    assert rows[0]["input_ids"] == made.rows["train"][0]["input_ids"]


# Rows that are refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((0, 1, None), "row 2, column 'label': there is no value"),
        ((0, 1, 0.5), "row 2, column 'label': 0.5 is a float"),
        ((1, 1, 1), "column 'label': there is only one class, '1'"),
        (([0], [1]), "row 0, column 'label': .* is not a class"),
    ],
)
def test_a_label_that_is_no_class_is_named(labels, message):
    with pytest.raises(DataError, match=f"split 'train', {message}"):
        prepared("single", single(*labels))


@pytest.mark.parametrize("label", ["perhaps", "-1"])
def test_a_class_that_training_has_not_seen_is_named(label):
    splits = {**same_splits(single("no", "yes")), "validation": Dataset.from_list(single("no", label))}
    with pytest.raises(
        DataError, match=f"split 'validation', row 1, column 'label': '{label}' is not among .*'no', 'yes'"
    ):
        ready(text_spec("glue", {"name": "single"}), splits)


def test_a_secret_label_is_named():
    named = Dataset.from_list(single(0, 1)).cast_column("label", ClassLabel(names=["no", "yes"]))
    secret = Dataset.from_list(single(0, -1)).cast_column("label", ClassLabel(names=["no", "yes"]))
    with pytest.raises(DataError, match=r"split 'validation', row 1, column 'label': -1 .*not published"):
        ready(text_spec("glue", {"name": "single"}), {"train": named, "validation": secret})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((1.0, float("nan")), "row 1, column 'label'"),
        ((1.0, float("inf")), "row 1, column 'label': inf is not finite"),
        ((1.0, None), "row 1, column 'label': there is no value"),
        (("1.0", "2.0"), "row 0, column 'label': '1.0' is not a number"),
    ],
)
def test_a_target_that_is_no_number_is_named(labels, message):
    with pytest.raises(DataError, match=f"split 'train', {message}"):
        prepared("single", single(*labels), regression=True)


@pytest.mark.parametrize(("sentence", "message"), [(None, "there is no text"), (3, "3 is not a text")])
def test_a_sentence_that_is_no_text_is_named(sentence, message):
    rows = [{"sentence": sentence, "label": label} for label in (0, 1)]
    with pytest.raises(DataError, match=f"split 'train', row 0, column 'sentence': {message}"):
        prepared("single", rows)


def test_a_model_with_too_few_positions_is_refused():
    with pytest.raises(UsageError, match=r"\[task\]\.max_length is 4096; the model takes \d+ tokens at most"):
        prepared("single", single(0, 1), max_length=4096)
