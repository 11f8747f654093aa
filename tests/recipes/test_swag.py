from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from tests.support.loops import evaluated
from tests.support.textruns import ready, same_splits, text_spec

from taskrecipe.errors import DataError, UsageError
from taskrecipe.recipe import learned_values, restore_learned

ENDINGS = ["reads a letter", "sings", "walks over the bridge today", "sleeps under the table"]


def row(endings: list[Any] = ENDINGS, label: Any = 2, **columns: Any) -> dict[str, Any]:
    listed = {f"ending{i}": ending for i, ending in enumerate(endings)}
    return {"context": "the farmer waits", "question": "today", **listed, "label": label, **columns}


def listed(endings: list[Any], label: Any = 1) -> dict[str, Any]:
    return {"context": "the farmer waits", "endings": endings, "label": label}


def prepared(rows: list[dict[str, Any]], task=None):
    return ready(text_spec("swag", task), same_splits(rows))


# Rows ----------------------------------------------------------------------------------------------------


def test_an_ending_is_seen_as_a_pair_with_its_context():
    made = prepared([row()])
    tokenizer, seen = made.recipe.processor, made.rows["train"][0]
    texts = [tokenizer.decode(ids) for ids in seen["input_ids"]]
    assert texts == [f"[CLS] the farmer waits [SEP] today {ending} [SEP]" for ending in ENDINGS]
    assert seen["token_type_ids"][1] == [0] * 5 + [1] * 3
    assert seen["labels"] == 2


def test_a_list_of_endings_is_the_same_as_a_column_each():
    plain = row()
    names = [name for name in plain if name.startswith("ending")]
    as_list = {**{k: v for k, v in plain.items() if k not in names}, "endings": [plain[name] for name in names]}
    one, other = (prepared([rows]).rows["train"].to_dict() for rows in (plain, as_list))
    assert one == other


@pytest.mark.parametrize("question", [None, "", "absent"])
def test_there_may_be_no_question(question):
    given = row(question=question)
    if question == "absent":
        del given["question"]
    made = prepared([given, row()]) if question == "" else prepared([given])
    assert (
        made.recipe.processor.decode(made.rows["train"][0]["input_ids"][1])
        == "[CLS] the farmer waits [SEP] sings [SEP]"
    )


def test_rows_are_cut_off_at_the_length_asked_for():
    made = prepared([row()], {"max_length": 7})
    assert {len(ids) for ids in made.rows["train"][0]["input_ids"]} == {7}


def test_a_length_beyond_the_model_is_refused():
    with pytest.raises(UsageError, match=r"\[task\].max_length is 129; the model takes 128"):
        prepared([row()], {"max_length": 129})


def test_all_endings_of_a_batch_are_padded_to_one_width():
    made = prepared([row(), row(["reads", "writes", "sings", "opens"], label=0)])
    batch = made.recipe.collate(list(made.rows["train"]))
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (2, 4, 12),
        "token_type_ids": (2, 4, 12),
        "attention_mask": (2, 4, 12),
        "labels": (2,),
    }
    assert batch["attention_mask"].sum(-1).tolist() == [[10, 8, 12, 11], [8, 8, 8, 8]]
    assert (batch["input_ids"][batch["attention_mask"] == 0] == made.recipe.processor.pad_token_id).all()
    assert batch["labels"].tolist() == [2, 0]


def test_lengths_are_those_of_the_longest_ending():
    made = prepared([row(), row(["reads", "writes", "sings", "opens"])])
    assert list(made.recipe.lengths(made.rows["train"])) == [12, 8]


@pytest.mark.parametrize("choices", [2, 3, 5])
def test_there_may_be_any_number_of_endings(choices):
    loop = ready(text_spec("swag", {"choices": choices}, train={"epochs": 1}), rows=6).loop()
    assert next(loop.state.updates(0)).batches[0].inputs["input_ids"].shape[:2] == (6, choices)
    assert 0.0 <= evaluated(loop)["accuracy"] <= 1.0


@pytest.mark.parametrize("label", ["2", 2])
def test_a_label_may_be_written_as_text(label):
    assert prepared([row(label=label)]).rows["train"]["labels"] == [2]


def test_class_labels_are_numbers():
    rows = Dataset.from_list([row(label=i) for i in (0, 3)]).cast_column(
        "label", ClassLabel(names=["0", "1", "2", "3"])
    )
    made = ready(text_spec("swag"), same_splits(rows))
    assert list(made.rows["train"]["labels"]) == [0, 3]


# Scores --------------------------------------------------------------------------------------------------


def test_the_ending_with_the_highest_number_is_chosen():
    made = prepared([row(label=label) for label in (0, 1, 2, 3, 3)])
    logits = torch.tensor([[9.0, 1, 2, 3], [9, 1, 2, 3], [0, 1, 8, 3], [0, 1, 2, 3], [4, 3, 2, 1]])
    predictions = made.recipe.predict(SimpleNamespace(logits=logits), {})
    assert predictions["ending"].tolist() == [0, 0, 2, 3, 0]
    numbers = made.recipe.score({name: np.asarray(value) for name, value in predictions.items()}, made.rows["train"])
    assert numbers == {"accuracy": 3 / 5}


def test_an_answer_is_the_number_and_text_of_an_ending_and_the_probability_of_each():
    made = prepared([row()])
    predictions = made.recipe.predict(SimpleNamespace(logits=torch.tensor([[1.0, 2.0, 1.0, 1.0]])), {})
    answer = made.recipe.answer({name: value[0].numpy() for name, value in predictions.items()}, made.rows["train"][0])
    assert (answer["ending"], answer["text"]) == (1, ENDINGS[1])
    chosen, other = math.e / (3 + math.e), 1 / (3 + math.e)
    assert answer["probabilities"] == pytest.approx([other, chosen, other, other])


@pytest.mark.parametrize("given", [row(), listed(ENDINGS)], ids=["columns", "list"])
def test_rows_without_a_label_can_be_predicted(given):
    recipe = prepared([given]).recipe
    bare = Dataset.from_list([{name: value for name, value in given.items() if name != "label"}] * 2)
    recipe.check(bare, "new")
    batch = recipe.collate(list(recipe.preprocess(bare, "new")))
    assert "labels" not in batch
    assert batch["input_ids"].shape[:2] == (2, 4)


def test_a_trained_model_remembers_how_many_endings_there_are():
    recipe = prepared([row()]).recipe
    other = type(recipe)(recipe.spec)
    restore_learned(other, json.loads(json.dumps(learned_values(recipe))))
    assert other.choices == 4
    with pytest.raises(DataError, match="every row must have 4 endings"):
        other.check(Dataset.from_list([{"context": "a", "endings": ENDINGS[:3]}]), "new")


def test_a_description_has_a_line_for_each_ending():
    made = prepared([row()])
    described = made.recipe.describe(made.rows["train"][0])
    texts = [" ".join(piece.text for piece in line) for line in described.lines]
    assert texts == [f"[CLS] the farmer waits [SEP] today {ending} [SEP]" for ending in ENDINGS]
    assert [i for i, piece in enumerate(described.lines[1]) if piece.role == "special"] == [0, 4, 7]
    assert described.facts == {"label": "2"}


# Rows that are refused ------------------------------------------------------------------------------------

HOSTILE_ROWS = {
    "three of four endings": (row([*ENDINGS[:3], None]), "4 endings that are not empty; this one has 3"),
    "a blank ending": (row([*ENDINGS[:3], " "]), "4 endings that are not empty; this one has 3"),
    "no label": (row(label=None), "0 to 3; found None"),
    "a label below": (row(label=-1), "found -1"),
    "a label beyond": (row(label=4), "found 4"),
    "no context": (row(context=None), "there is no text"),
}


@pytest.mark.parametrize("name", HOSTILE_ROWS)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_row_that_cannot_be_trained_on_is_named(name, split):
    bad, message = HOSTILE_ROWS[name]
    splits = {**same_splits([row(), row()]), split: Dataset.from_list([row(), bad])}
    with pytest.raises(DataError, match=f"split '{split}', row 1.*{message}"):
        ready(text_spec("swag"), splits)


@pytest.mark.parametrize("label", [1.0, "one", "-1", True])
def test_a_label_that_is_no_whole_number_is_refused(label):
    with pytest.raises(DataError, match=f"row 0, column 'label': .*found {label!r}"):
        prepared([row(label=label)])


@pytest.mark.parametrize("endings", [ENDINGS[:3], [*ENDINGS, "more"], None])
def test_ragged_lists_of_endings_are_refused(endings):
    with pytest.raises(DataError, match="split 'train', row 1: every row must have 4 endings"):
        prepared([listed(ENDINGS), listed(endings)])


def test_the_number_of_endings_can_be_demanded():
    with pytest.raises(DataError, match="row 0: every row must have 5 endings that are not empty; this one has 4"):
        prepared([row()], {"choices": 5})


def test_one_ending_is_no_choice():
    with pytest.raises(DataError, match="at least 2 endings"):
        prepared([row(ENDINGS[:1], label=0)])


def test_rows_without_endings_are_refused_with_the_columns_there_are():
    with pytest.raises(DataError, match="neither a column ending0 nor a column endings; found context, label"):
        prepared([{"context": "a", "label": 0}])
