from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from tests.support.textruns import Ready, ready, same_splits, text_spec
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.testing import conformance

test_it_conforms = conformance("token_classification")

TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
WORDS = ["the", "sailor", "waits"]
TAGGED = {"tokens": WORDS, "tags": ["O", "B-PER", "O"]}


def prepared(rows: Any, task: dict[str, Any] | None = None):
    return ready(text_spec("token_classification", task), same_splits(rows))


def pieces_tokenizer() -> PreTrainedTokenizerFast:
    """Cuts unhappiness into un, ##happi, ##ness, and knows a few whole words."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##happi", "##ness", "##s", "the", "sailor"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def labels_of(words: list[str], tags: list[str], split: str, task: dict[str, Any]) -> list[int]:
    recipe = prepared([{"tokens": words, "tags": tags}], task).recipe
    recipe.processor = pieces_tokenizer()
    return recipe.preprocess(Dataset.from_list([{"tokens": words, "tags": tags}]), split)[0]["labels"]


# Labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "split", "expected"),
    [
        ("first", "train", [-100, 2, 0, -100, -100, 1, -100, -100]),
        ("all", "train", [-100, 2, 0, 0, 0, 1, 1, -100]),
        ("all", "validation", [-100, 2, 0, -100, -100, 1, -100, -100]),
    ],
)
def test_pieces_get_the_label_of_their_word(pieces, split, expected):
    """[CLS] the | un ##happi ##ness | sailor ##s [SEP], with the tags O, B-X, I-X in the alphabet's order."""
    words = ["the", "unhappiness", "sailors"]
    assert labels_of(words, ["O", "B-X", "I-X"], split, {"pieces": pieces}) == expected


def test_words_that_are_cut_off_are_counted():
    rows = [TAGGED, {"tokens": ["the"], "tags": ["O"]}]
    with pytest.warns(UserWarning, match="1 of 4 words are blank or beyond"):
        made = prepared(rows, {"max_length": 4})
    assert [row.count(-100) for row in made.rows["train"]["labels"]] == [2, 2]


def test_blank_words_are_counted_and_rows_without_words_weigh_nothing():
    with pytest.warns(UserWarning, match="1 of 3 words are blank or beyond"):
        made = prepared([{"tokens": ["the", " "], "tags": ["O", "B-PER"]}, {"tokens": ["a"], "tags": ["O"]}])
    rows = Dataset.from_list([TAGGED, {"tokens": [], "tags": []}])
    recipe = prepared(rows).recipe
    batch = recipe.collate(list(recipe.preprocess(rows, "train")))
    assert recipe.loss_counts(batch) == {"loss": 3.0}
    assert made.rows["train"]["labels"][0] == [-100, 1, -100]


def test_a_length_that_leaves_no_word_is_refused():
    with pytest.raises(DataError, match="no word is left"):
        prepared([TAGGED], {"max_length": 2})


def named(rows: list[list[int]], names: list[str] = TAGS) -> Dataset:
    features = Features({"tokens": List(Value("string")), "tags": List(ClassLabel(names=names))})
    return Dataset.from_dict({"tokens": [WORDS[: len(row)] for row in rows], "tags": rows}, features=features)


def test_tags_are_compared_by_name_however_they_are_stored():
    splits = {
        "train": named([[0, 1, 2], [3]]),
        "validation": Dataset.from_list([{"tokens": WORDS, "tags": ["B-LOC", "O", "I-PER"]}]),
        "other order": named([[0, 1, 2]], names=TAGS[::-1]),
    }
    made = ready(text_spec("token_classification"), splits)
    assert made.recipe.labels == TAGS
    assert made.rows["validation"][0]["labels"] == [-100, 3, 0, 2, -100]
    assert made.rows["other order"][0]["labels"] == [-100, 3, 2, 1, -100]


def test_numbers_get_their_names_from_the_options():
    made = prepared([{"tokens": WORDS, "tags": [0, 1, 2]}], {"tags": TAGS})
    assert made.recipe.labels == TAGS
    assert made.rows["train"][0]["labels"] == [-100, 0, 1, 2, -100]


def test_tag_names_are_saved_with_the_model(tmp_path):
    made = prepared(named([[0, 1, 2], [3]]))
    made.loop().state.module.save_pretrained(tmp_path)
    assert ModelSource(str(tmp_path)).config().id2label == dict(enumerate(TAGS))


def test_a_model_that_knows_the_tags_in_another_order_keeps_it(tmp_path):
    order = ["B-LOC", "O", "I-PER", "B-PER"]
    recipe = prepared(named([[0, 1, 2], [3]])).recipe
    recipe.processor.save_pretrained(tmp_path)
    ModelSource(None, type="bert").config(id2label=dict(enumerate(order))).save_pretrained(tmp_path)
    recipe.load_processor(ModelSource(str(tmp_path)))
    assert recipe.labels == order
    assert recipe.preprocess(named([[0, 1, 2]]), "train")[0]["labels"] == [-100, 1, 3, 2, -100]


# Scores --------------------------------------------------------------------------------------------------


def score(labels: list[str], right: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    recipe = prepared([TAGGED]).recipe
    recipe.labels = labels
    numbers = {
        key: [np.array([labels.index(tag) for tag in row], dtype=int) for row in rows]
        for key, rows in (("right", right), ("predicted", predicted))
    }
    rows = Dataset.from_dict({"labels": numbers["right"], "word_starts": [list(range(len(row))) for row in right]})
    return recipe.score({"tags": numbers["predicted"]}, rows)


def test_an_entity_counts_only_as_a_whole():
    """Right are 3 entities, predicted 4, of which 2 are the same: the person of two words, and the second place."""
    numbers = score(
        TAGS,
        right=[["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "O"]],
        predicted=[["B-PER", "I-PER", "B-LOC", "O"], ["B-PER", "B-LOC", "O"]],
    )
    assert numbers == pytest.approx({"precision": 2 / 4, "recall": 2 / 3, "f1": 2 * 2 / (4 + 3), "accuracy": 4 / 7})


def test_a_continuation_without_a_beginning_begins_an_entity():
    numbers = score(TAGS, right=[["O", "B-PER", "I-PER"]], predicted=[["O", "I-PER", "I-PER"]])
    assert numbers["f1"] == 1.0
    assert numbers["accuracy"] == pytest.approx(2 / 3)


def test_tags_without_prefix_are_one_entity_while_they_stay_the_same():
    """Right are NOUN NOUN, VERB and NOUN; predicted NOUN, VERB VERB and NOUN: only the last agrees."""
    numbers = score(
        ["NOUN", "VERB"], right=[["NOUN", "NOUN", "VERB", "NOUN"]], predicted=[["NOUN", "VERB", "VERB", "NOUN"]]
    )
    assert numbers == pytest.approx({"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "accuracy": 3 / 4})


def test_nothing_predicted_and_nothing_right_are_zero_not_a_warning():
    assert score(TAGS, right=[["O", "O"]], predicted=[["O", "O"]]) == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "accuracy": 1.0,
    }


def predicted(made: Ready, tags: list[list[int]]) -> dict[str, Any]:
    """What is predicted if these are the likeliest tags of the tokens of the training rows."""
    batch = made.recipe.collate(list(made.rows["train"]))
    return made.recipe.predict(SimpleNamespace(logits=torch.eye(len(made.recipe.labels))[torch.tensor(tags)]), batch)


def test_predictions_are_those_of_the_words_alone():
    """B-PER is tag 0, O is tag 1. Of five words, three are right: those of the first row."""
    made = prepared([TAGGED, {"tokens": ["the", "sailor"], "tags": ["O", "O"]}])
    found = predicted(made, [[0, 1, 0, 1, 0], [1, 0, 0, 1, 1]])
    assert [row.tolist() for row in found["tags"]] == [[1, 0, 1], [0, 0]]
    assert made.recipe.score(found, made.rows["train"])["accuracy"] == 3 / 5


@pytest.mark.parametrize("pieces", ["first", "all"])
def test_a_word_of_several_tokens_has_the_tag_of_its_first_token(pieces):
    row = {"tokens": ["the", "unhappiness", "sailors"], "tags": ["O", "B-X", "I-X"]}
    made = prepared([row], {"pieces": pieces})
    made.recipe.processor = pieces_tokenizer()
    made.rows["train"] = made.recipe.preprocess(Dataset.from_list([row]), "train")
    assert made.rows["train"][0]["word_starts"] == [-1, 0, 1, -1, -1, 2, -1, -1]
    found = predicted(made, [[0, 2, 0, 2, 2, 1, 0, 0]])
    assert [row.tolist() for row in found["tags"]] == [[2, 0, 1]]
    assert made.recipe.score(found, made.rows["train"])["f1"] == 1.0


# Answers -------------------------------------------------------------------------------------------------


def answers(rows: list[dict[str, Any]], tags: list[list[str]], **task: Any) -> list[Any]:
    """The answers if these are the tags of the words that the model sees."""
    made = prepared(rows, {"tags": TAGS, **task})
    found = [np.array([TAGS.index(tag) for tag in row], dtype=int) for row in tags]
    return [made.recipe.answer({"tags": row}, made.rows["train"][i]) for i, row in enumerate(found)]


def test_an_answer_has_the_tag_of_each_word_and_the_entities_in_their_text():
    words = ["the", "sailor", "waits", "near", "harbor"]
    (answer,) = answers([{"tokens": words, "tags": [0] * 5}], [["O", "B-PER", "I-PER", "O", "B-LOC"]])
    assert answer == {
        "text": "the sailor waits near harbor",
        "words": words,
        "tags": ["O", "B-PER", "I-PER", "O", "B-LOC"],
        "entities": [
            {"type": "PER", "text": "sailor waits", "start": 4, "end": 16, "words": [1, 2]},
            {"type": "LOC", "text": "harbor", "start": 22, "end": 28, "words": [4, 4]},
        ],
        "lost_words": 0,
    }
    for entity in answer["entities"]:
        assert answer["text"][entity["start"] : entity["end"]] == entity["text"]


@pytest.mark.filterwarnings("ignore:.*words are blank or beyond")
def test_a_blank_word_has_no_tag_and_words_beyond_the_length_are_counted():
    words = ["the", " ", "sailor", "waits", "near"]
    (answer,) = answers([{"tokens": words, "tags": [0] * 5}], [["B-PER", "I-PER"]], max_length=4)
    assert answer["words"] == ["the", " ", "sailor"]
    assert answer["tags"] == ["B-PER", None, "I-PER"]
    assert answer["entities"] == [{"type": "PER", "text": "the   sailor", "start": 0, "end": 12, "words": [0, 2]}]
    assert answer["lost_words"] == 3


@pytest.mark.filterwarnings("ignore:.*words are blank or beyond")
@pytest.mark.parametrize(("words", "seen"), [([WORDS, []], [3, 0]), ([[" "], [" ", " "]], [0, 0])])
def test_rows_without_tags_are_predicted_even_if_they_have_no_words(words, seen):
    recipe = prepared([TAGGED]).recipe
    bare = Dataset.from_dict({"tokens": words})
    recipe.check(bare, "new")
    rows = recipe.preprocess(bare, "new")
    batch = recipe.collate(list(rows))
    assert "labels" not in batch
    found = recipe.predict(SimpleNamespace(logits=torch.zeros(*batch["input_ids"].shape, 2)), batch)
    assert [len(row) for row in found["tags"]] == seen
    assert [
        len(recipe.answer({"tags": tags}, row)["tags"]) for tags, row in zip(found["tags"], rows, strict=True)
    ] == seen


def test_a_missing_word_is_named_in_rows_without_tags_too():
    with pytest.raises(DataError, match="split 'new', row 1: a word is missing"):
        prepared([TAGGED]).recipe.check(Dataset.from_dict({"tokens": [["a"], ["a", None]]}), "new")


def test_a_description_shows_the_tag_that_a_token_learns():
    made = prepared([TAGGED])
    (line,) = made.recipe.describe(made.rows["train"][0]).lines
    assert [(piece.text, piece.role, piece.note) for piece in line] == [
        ("[CLS]", "special", ""),
        ("the", "trained", "O"),
        ("sailor", "trained", "B-PER"),
        ("waits", "trained", "O"),
        ("[SEP]", "special", ""),
    ]


# Rows that are refused ------------------------------------------------------------------------------------

HOSTILE_ROWS = {
    "too few tags": ({"tokens": WORDS, "tags": ["O"]}, "3 words and 1 tags"),
    "no tags": ({"tokens": WORDS, "tags": None}, "3 words and 0 tags"),
    "a missing tag": ({"tokens": WORDS, "tags": ["O", None, "O"]}, "tag None is not one of"),
    "a missing word": ({"tokens": ["the", None], "tags": ["O", "O"]}, "a word is missing"),
    "no words": ({"tokens": None, "tags": ["O"]}, "a word is missing"),
}


@pytest.mark.parametrize("name", HOSTILE_ROWS)
def test_a_row_that_cannot_be_trained_on_is_named(name):
    bad, message = HOSTILE_ROWS[name]
    with pytest.raises(DataError, match=f"split 'train', row 1: .*{message}"):
        prepared([TAGGED, bad])


def test_a_tag_that_training_has_not_seen_is_named():
    splits = {**same_splits([TAGGED]), "validation": Dataset.from_list([{"tokens": ["a"], "tags": ["B-ORG"]}])}
    with pytest.raises(DataError, match=r"split 'validation', row 0: tag 'B-ORG' is not one of .*: B-PER, O"):
        ready(text_spec("token_classification"), splits)


def test_one_tag_is_nothing_to_tell_apart():
    with pytest.raises(DataError, match=r"column 'tags': there is nothing to tell apart: tags are \['O'\]"):
        prepared([{"tokens": WORDS, "tags": ["O", "O", "O"]}])


def test_a_number_that_is_no_tag_is_named():
    with pytest.raises(DataError, match="row 0: tag 4 is not one of"):
        prepared([{"tokens": WORDS, "tags": [0, 4, 1]}], {"tags": TAGS})


@pytest.mark.parametrize("tags", [[0, 1, 0], [0.0, 1.0, 0.0], "O B-PER O"])
def test_tags_without_names_are_refused(tags):
    with pytest.raises(DataError, match=r"column 'tags': tags must be a list of names, or of numbers whose names"):
        prepared([{"tokens": WORDS, "tags": tags}])


def test_a_text_is_no_list_of_words():
    with pytest.raises(DataError, match="column 'tokens': tokens must be a list of words"):
        prepared([{"tokens": "the sailor waits", "tags": ["O", "B-PER", "O"]}])


def test_a_length_beyond_the_model_is_refused():
    with pytest.raises(UsageError, match=r"\[task\].max_length is 200; the model takes 128 tokens"):
        prepared([TAGGED], {"max_length": 200})
