from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.support.textruns import ready, same_splits, text_spec

from taskrecipe.contrib import spans
from taskrecipe.errors import DataError, UsageError
from taskrecipe.testing import conformance

test_it_conforms = conformance("question_answering")

CONTEXT = "the sailor opens the window near the harbor today the farmer closes the table behind the village"
QUESTION = "one sailor takes"


def row(answer: str | None = "window near the harbor", context: str = CONTEXT, **columns: Any) -> dict[str, Any]:
    found = [] if answer is None else [answer]
    answers = {"text": found, "answer_start": [context.index(text) for text in found]}
    return {"question": QUESTION, "context": context, "answers": answers, **columns}


def prepared(rows: list[dict[str, Any]], **task: Any):
    return ready(text_spec("question_answering", {"max_length": 16, "stride": 4, **task}), same_splits(rows))


# Windows -------------------------------------------------------------------------------------------------


def test_windows_cover_the_context_and_overlap_by_the_stride():
    made = prepared([row()])
    windows = made.rows["train"]
    tokenizer, words = made.recipe.processor, CONTEXT.split()
    room = 16 - 3 - 3  # [CLS] and two [SEP], and the question
    assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in windows["input_ids"]] == [
        " ".join([QUESTION, *words[start : start + room]]) for start in (0, 6, 12)
    ]


def test_places_are_those_of_the_context_alone():
    made = prepared([row()])
    for window in made.rows["train"]:
        words = made.recipe.processor.convert_ids_to_tokens(window["input_ids"])
        for word, (begin, end) in zip(words, window["places"], strict=True):
            assert CONTEXT[begin:end] == word if begin >= 0 else (begin, end) == (-1, -1)
        assert [begin for begin, _ in window["places"]][:5] == [-1] * 5


def test_the_answer_is_pointed_at_where_a_window_holds_all_of_it_and_else_the_first_token():
    """Words 4 to 7 answer; the windows begin at words 0, 6 and 12."""
    windows = prepared([row()]).rows["train"]
    assert [(w["start_positions"], w["end_positions"]) for w in windows] == [(9, 12), (0, 0), (0, 0)]
    windows = prepared([row("farmer closes")]).rows["train"]
    assert [(w["start_positions"], w["end_positions"]) for w in windows] == [(0, 0), (9, 10), (0, 0)]


def test_an_answer_within_a_word_is_pointed_at_by_that_word():
    windows = prepared([row("indow near the har")]).rows["train"]
    assert (windows[0]["start_positions"], windows[0]["end_positions"]) == (9, 12)


def test_a_window_keeps_its_own_part_of_the_context_and_the_first_one_the_answers():
    windows, words = prepared([row(), row("sailor opens")]).rows["train"], CONTEXT.split()
    assert windows["example"] == [0, 0, 0, 1, 1, 1]
    parts = [" ".join(words[start : start + 10]) for start in (0, 6, 12)]
    assert windows["context"] == parts * 2
    assert windows["context_start"] == [CONTEXT.index(part) for part in parts] * 2
    given = [row()["answers"], row("sailor opens")["answers"]]
    assert windows["answers"] == [given[0], None, None, given[1], None, None]


def test_rows_without_answers_are_cut_into_the_same_windows():
    made = prepared([row(), row("sailor opens")])
    bare = Dataset.from_list([row(), row("sailor opens")]).remove_columns("answers")
    made.recipe.check(bare, "new")
    targets = ["start_positions", "end_positions", "answers"]
    assert made.recipe.preprocess(bare, "new").to_dict() == made.rows["train"].remove_columns(targets).to_dict()


def test_a_batch_holds_no_text_and_its_padding_is_nowhere():
    made = prepared([row(), row("sailor", context="a sailor")])
    batch = made.recipe.collate(list(made.rows["train"]))
    assert set(batch) == {*made.recipe.processor.model_input_names, *("start_positions", "end_positions", "places")}
    assert (batch["places"][batch["attention_mask"] == 0] == -1).all()
    assert made.recipe.loss_counts(batch) == {"loss": 4.0}


# Loss and spans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_padding_has_no_part_in_the_loss(smoothing):
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets, seen = torch.tensor([0, 2, 1]), torch.ones(3, 5, dtype=torch.bool)
    expected = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=smoothing)
    assert spans.pointing_loss(logits, targets, seen, smoothing) == pytest.approx(expected.item(), rel=1e-14)
    padded = torch.cat([logits, torch.full((3, 4), 50.0)], dim=1)
    wider = torch.cat([seen, torch.zeros(3, 4, dtype=torch.bool)], dim=1)
    assert spans.pointing_loss(padded, targets, wider, smoothing) == pytest.approx(expected.item(), rel=1e-14)


def test_the_loss_is_of_both_ends_and_smoothed_in_training_only():
    spec = text_spec("question_answering", {"max_length": 16, "stride": 4}, train={"label_smoothing": 0.3})
    made = ready(spec, same_splits([row()]))
    loop = made.loop()
    batch = made.recipe.collate(list(made.rows["train"]))
    for training, smoothing in ((True, 0.3), (False, 0.0)):
        loop.model.train(training)
        outputs = made.recipe.forward(loop.model, batch)
        ends = [
            spans.pointing_loss(logits, batch[f"{end}_positions"], batch["attention_mask"].bool(), smoothing)
            for end, logits in (("start", outputs.start_logits), ("end", outputs.end_logits))
        ]
        loss = made.recipe.loss(outputs, batch, training=training)["loss"]
        torch.testing.assert_close(loss, (ends[0] + ends[1]) / 2)


@pytest.mark.parametrize("longest", [1, 3, 9, 40])
def test_the_best_spans_are_the_best_of_all(longest):
    random = np.random.default_rng(longest)
    starts, ends = (torch.from_numpy(random.normal(size=(20, 9))) for _ in range(2))
    allowed = torch.from_numpy(random.random((20, 9)) < 0.7)
    allowed[:, 4] = True
    score, first, last = spans.best_spans(starts, ends, allowed, longest, 7)
    for i in range(20):
        pairs = [
            (a, b)
            for a, b in itertools.combinations_with_replacement(range(9), 2)
            if allowed[i, a] and allowed[i, b] and b - a < longest
        ]
        best = sorted(pairs, key=lambda pair: -(starts[i, pair[0]] + ends[i, pair[1]]).item())[:7]
        found = len(best)
        assert list(zip(first[i].tolist(), last[i].tolist(), strict=True))[:found] == best
        assert score[i, :found].tolist() == [(starts[i, a] + ends[i, b]).item() for a, b in best]
        assert (score[i, found:] == float("-inf")).all()


# Scores --------------------------------------------------------------------------------------------------


def predictions(scores: list[float], spans_: list[tuple[int, int]], nothing: list[float]) -> dict[str, Any]:
    """What is predicted if each window has one span."""
    begins, ends = zip(*spans_, strict=True)
    spans_by_window = {"score": np.array(scores), "begin": np.array(begins), "end": np.array(ends)}
    return {**{name: values[:, None] for name, values in spans_by_window.items()}, "nothing": np.array(nothing)}


OWN = ("window near the harbor", "farmer closes the table", "table behind the village")
"""A span of each window, which the window before doesn't have."""


@pytest.mark.parametrize(("first", "second"), [(1, 5), (2, 3), (0, 4)])
def test_the_best_of_all_windows_answers(first, second):
    """Of two examples with three windows each, these two know best; the others score less, and more the nearer."""
    made = prepared([row(OWN[first]), row(OWN[second - 3])])
    scores = [1.0, 2.0, 3.0, 3.0, 2.0, 1.0]
    spans_ = [(start, start + 3) for start in made.rows["train"]["context_start"]]  # "the", which is no word
    for window, score, text in ((first, 7.0, " ".join(OWN[first].split()[:2])), (second, 4.0, OWN[second - 3])):
        begin = CONTEXT.index(text)
        scores[window], spans_[window] = score, (begin, begin + len(text))
    numbers = made.recipe.score(predictions(scores, spans_, [9.0] * 6), made.rows["train"])
    # Two words of the first right answer are found, of three ("the" is no word); the second is found as a whole.
    assert numbers == pytest.approx({"f1": 100 * (4 / 5 + 1) / 2, "exact_match": 50.0})


@pytest.mark.parametrize(
    ("threshold", "silent"),
    [(0.0, False), (-0.6, True), (-0.5, False)],
)
def test_no_answer_is_given_if_it_exceeds_the_best_span_by_the_threshold(threshold, silent):
    """The least of the windows' scores of no answer is 4.5; the best span's is 5."""
    made = prepared([row(None)], no_answer=True, threshold=threshold)
    numbers = made.recipe.score(predictions([1.0, 5.0, 2.0], [(4, 10)] * 3, [8.0, 4.5, 6.0]), made.rows["train"])
    assert numbers["no_answer_accuracy"] == 100.0 * silent
    assert list(numbers) == list(made.recipe.metrics())


def test_predictions_are_characters_of_the_context():
    made = prepared([row()])
    batch = made.recipe.collate(list(made.rows["train"]))
    starts, ends = (torch.zeros(3, 16) for _ in range(2))
    starts[:, 9], ends[:, 10], ends[:, 9] = 2.0, 3.0, 1.5
    starts[:, 1] = 100.0  # in the question, where no answer is
    starts[:, 0], ends[:, 0] = 0.25, 0.5
    found = made.recipe.predict(SimpleNamespace(start_logits=starts, end_logits=ends), batch)
    assert found["score"][:, 0].tolist() == [5.0, 5.0, 3.5]  # the last window ends before position 10
    assert found["nothing"].tolist() == [0.75] * 3
    assert {name: tuple(values.shape) for name, values in found.items()} == {
        **dict.fromkeys(("score", "begin", "end"), (3, 5)),
        "nothing": (3,),
    }
    texts = [CONTEXT[begin:end] for begin, end in zip(found["begin"][0], found["end"][0], strict=True)]
    assert texts[:2] == ["window near", "window"]
    assert found["score"][0].tolist() == [5.0, 3.5, 3.0, 3.0, 3.0]


def test_answers_longer_than_asked_for_are_not_given():
    made = prepared([row()], max_answer=1)
    batch = made.recipe.collate(list(made.rows["train"]))
    found = made.recipe.predict(made.recipe.forward(made.loop().model, batch), batch)
    places = zip(found["begin"].flatten(), found["end"].flatten(), strict=True)
    assert all(" " not in CONTEXT[begin:end] for begin, end in places)


# Answers -------------------------------------------------------------------------------------------------


def candidate(text: str, score: float) -> dict[str, Any]:
    return {"answer": text, "start": CONTEXT.index(text), "end": CONTEXT.index(text) + len(text), "score": score}


def predicted(*candidates: dict[str, Any], nothing: float) -> dict[str, Any]:
    """A window's prediction of these candidates."""
    names = {"score": "score", "begin": "start", "end": "end"}
    return {name: np.array([c[key] for c in candidates]) for name, key in names.items()} | {"nothing": nothing}


def test_an_answer_is_found_in_the_part_of_the_context_that_a_window_has():
    made = prepared([row()])
    best, second = candidate("farmer closes", 4.0), candidate("table", 2.5)
    answer = made.recipe.answer(predicted(best, second, nothing=9.0), made.rows["train"][1])
    assert answer == {**best, "no_answer_score": 9.0, "candidates": [best, second]}
    assert json.loads(json.dumps(answer)) == answer


def test_windows_of_an_example_are_merged_into_one_answer():
    """A span that two windows have found is one candidate, with the higher score; nothing's score is the lowest."""
    made = prepared([row(), row("sailor opens")], no_answer=True, threshold=2.0)
    harbor, farmer, village = candidate("harbor", 1.0), candidate("farmer", 3.0), candidate("village", 2.0)
    windows = [
        predicted(harbor, nothing=7.0),
        predicted(farmer, {**harbor, "score": 2.5}, nothing=5.0),
        predicted(village, nothing=6.0),
        predicted(candidate("sailor", 1.0), nothing=3.5),
    ]
    rows = made.rows["train"].select(range(4))
    answers = [made.recipe.answer(window, row) for window, row in zip(windows, rows, strict=True)]
    assert [answer["answer"] for answer in answers] == ["", "farmer", "", ""]
    assert [made.recipe.answer(*made.recipe.merge(windows[a:b], list(rows)[a:b])) for a, b in ((0, 3), (3, 4))] == [
        {**farmer, "no_answer_score": 5.0, "candidates": [farmer, {**harbor, "score": 2.5}, village]},
        {
            "answer": "",
            "start": None,
            "end": None,
            "score": None,
            "no_answer_score": 3.5,
            "candidates": [candidate("sailor", 1.0)],
        },
    ]


def test_only_the_best_candidates_of_an_example_are_kept():
    found = [[{"start": i, "end": i + 1, "score": float(i)}] for i in range(9)]
    assert [c["start"] for c in spans.merge_candidates(found, 5)] == [8, 7, 6, 5, 4]


def test_a_description_marks_the_answer_where_a_window_has_it():
    made = prepared([row()])
    described = [made.recipe.describe(window) for window in made.rows["train"]]
    targets = [[piece.text for line in d.lines for piece in line if piece.role == "target"] for d in described]
    assert targets == [["window", "near", "the", "harbor"], [], []]
    assert [d.facts["answer"] for d in described] == ["window near the harbor", *["not in this window"] * 2]


# Rows that are refused ------------------------------------------------------------------------------------

HOSTILE_ROWS = {
    "elsewhere": (
        {**row(), "answers": {"text": ["window"], "answer_start": [3]}},
        "answer 'window' does not stand at character 3",
    ),
    "before the text": ({**row(), "answers": {"text": ["e"], "answer_start": [-1]}}, ".*at character -1"),
    "no answer": (row(None), "there is no answer; if that may be so, set .task..no_answer"),
    "no place": ({**row(), "answers": {"text": ["window"], "answer_start": []}}, ".*found 1 answers and 0 places"),
    "no answers": ({**row(), "answers": None}, "there is no answer"),
    "an empty answer": ({**row(), "answers": {"text": [""], "answer_start": [0]}}, "answer '' does not stand"),
    "a missing answer": ({**row(), "answers": {"text": [None], "answer_start": [0]}}, "answer None does not stand"),
    "a missing place": ({**row(), "answers": {"text": ["the"], "answer_start": [None]}}, "answer 'the' does not stand"),
}


@pytest.mark.parametrize("name", HOSTILE_ROWS)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_an_answer_that_cannot_be_learnt_is_named(name, split):
    bad, message = HOSTILE_ROWS[name]
    splits = {**same_splits([row(), row()]), split: Dataset.from_list([row(), bad])}
    with pytest.raises(DataError, match=f"split '{split}', row 1, column 'answers': {message}"):
        ready(text_spec("question_answering"), splits)


@pytest.mark.parametrize(
    "answers",
    [
        "window",
        ["window"],
        {"text": "window", "answer_start": 4},
        {"text": ["window"], "answer_start": [4.0]},
        {"text": [4], "answer_start": [4]},
        {"text": ["window"]},
        [{"text": "window", "answer_start": 4}],
    ],
)
def test_answers_of_another_shape_are_refused(answers):
    with pytest.raises(DataError, match=r"split 'train', column 'answers': answers must be {text: .*; found "):
        prepared([{**row(), "answers": answers}])


@pytest.mark.parametrize("answers", [{"text": [], "answer_start": []}, {"text": None, "answer_start": None}, None])
def test_no_answer_may_be_written_in_several_ways(answers):
    made = prepared([row(), {**row(), "answers": answers}], no_answer=True)
    assert made.rows["train"]["start_positions"][3:] == [0, 0, 0]
    found = made.recipe.score(predictions([1.0] * 6, [(0, 3)] * 6, [9.0] * 6), made.rows["train"])
    assert (found["no_answer_accuracy"], found["has_answer_f1"]) == (100.0, 0.0)


def test_thousands_of_rows_may_have_no_answer_before_one_has():
    """Rows are preprocessed a thousand at a time, and the first thousand decide the type of a new column."""
    rows = Dataset.from_list([row("sailor", context="a sailor"), *[row(None, context="a sailor")] * 1500])
    made = ready(text_spec("question_answering", {"no_answer": True}), same_splits(rows.select(range(1500, -1, -1))))
    assert made.rows["train"][-1]["answers"] == {"text": ["sailor"], "answer_start": [2]}


def test_a_question_that_leaves_no_room_is_named():
    with pytest.raises(
        DataError, match=r"split 'train', row 1, column 'question': the question has 9 tokens; .* fewer than 9 leave"
    ):
        prepared([row(), row(question="sailor " * 9)])


def test_a_length_beyond_the_model_is_refused():
    with pytest.raises(UsageError, match=r"\[task\].max_length is 129; the model takes 128 tokens"):
        prepared([row()], max_length=129)


@pytest.mark.parametrize("task", [{"max_length": 100}, {"max_length": 40, "stride": 40}])
def test_windows_that_only_repeat_are_refused(task):
    with pytest.raises(ValueError, match="must be less than max_length"):
        text_spec("question_answering", {"stride": 128, **task})


def test_a_blank_context_has_no_answer():
    with pytest.warns(UserWarning, match="1 of 2 texts are blank"):
        made = prepared([row(), row(None, context=" ")], no_answer=True)
    batch = made.recipe.collate(list(made.rows["train"]))
    found = made.recipe.predict(made.recipe.forward(made.loop().model, batch), batch)
    found = {name: values.detach().numpy() for name, values in found.items()}
    assert made.recipe.score(found, made.rows["train"])["no_answer_accuracy"] == 100.0
    answer = made.recipe.answer({name: values[-1] for name, values in found.items()}, made.rows["train"][-1])
    assert (answer["answer"], answer["start"], answer["score"], answer["candidates"]) == ("", None, None, [])
