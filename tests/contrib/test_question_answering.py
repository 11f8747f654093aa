from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from textruns import ready, same_splits, text_spec

from taskrecipe.contrib import spans
from taskrecipe.core.errors import DataError, UsageError
from taskrecipe.core.testing import conformance

test_it_conforms = conformance("question_answering")

CONTEXT = "the sailor opens the window near the harbour today the farmer closes the table behind the village"
QUESTION = "one sailor takes"


def row(answer: str | None = "window near the harbour", context: str = CONTEXT, **columns: Any) -> dict[str, Any]:
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
    windows = prepared([row("indow near the harb")]).rows["train"]
    assert (windows[0]["start_positions"], windows[0]["end_positions"]) == (9, 12)


def test_texts_are_kept_once_for_each_example():
    windows = prepared([row(), row("sailor opens")]).rows["train"]
    assert windows["example"] == [0, 0, 0, 1, 1, 1]
    assert windows["context"] == [CONTEXT, "", "", CONTEXT, "", ""]
    assert windows["answers"] == [["window near the harbour"], [], [], ["sailor opens"], [], []]


def test_a_batch_holds_no_text_and_its_padding_is_nowhere():
    made = prepared([row(), row("sailor", context="a sailor")])
    batch = made.recipe.collate(list(made.rows["train"]))
    assert set(batch) == {*made.recipe.processor.model_input_names, *("start_positions", "end_positions", "places")}
    assert (batch["places"][batch["attention_mask"] == 0] == -1).all()
    assert made.recipe.weights(batch) == {"loss": 4.0}


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
        loss = loop.recipe.loss(loop.model, batch)
        ends = [
            spans.pointing_loss(logits, batch[f"{end}_positions"], batch["attention_mask"].bool(), smoothing)
            for end, logits in (("start", loss.outputs.start_logits), ("end", loss.outputs.end_logits))
        ]
        torch.testing.assert_close(loss.terms["loss"], (ends[0] + ends[1]) / 2)


@pytest.mark.parametrize("longest", [1, 3, 9, 40])
def test_the_best_span_is_the_best_of_all(longest):
    random = np.random.default_rng(longest)
    starts, ends = (torch.from_numpy(random.normal(size=(20, 9))) for _ in range(2))
    allowed = torch.from_numpy(random.random((20, 9)) < 0.7)
    allowed[:, 4] = True
    score, first, last = spans.best_spans(starts, ends, allowed, longest)
    for i in range(20):
        pairs = [
            (a, b)
            for a, b in itertools.combinations_with_replacement(range(9), 2)
            if allowed[i, a] and allowed[i, b] and b - a < longest
        ]
        best = max(pairs, key=lambda pair: (starts[i, pair[0]] + ends[i, pair[1]]).item())
        assert (int(first[i]), int(last[i])) == best
        assert score[i] == starts[i, best[0]] + ends[i, best[1]]


# Scores --------------------------------------------------------------------------------------------------


def predictions(scores: list[float], spans_: list[tuple[int, int]], nothing: list[float]) -> dict[str, Any]:
    begins, ends = zip(*spans_, strict=True)
    return {
        "score": np.array(scores),
        "begin": np.array(begins),
        "end": np.array(ends),
        "nothing": np.array(nothing),
    }


@pytest.mark.parametrize(("first", "second"), [(1, 5), (2, 3), (0, 4)])
def test_the_best_of_all_windows_answers(first, second):
    """Of two examples with three windows each, these two know best; the others score less, and more the nearer."""
    made = prepared([row(), row("sailor opens")])
    window, sailor = CONTEXT.index("window"), CONTEXT.index("sailor")
    scores, spans_ = [1.0, 2.0, 3.0, 3.0, 2.0, 1.0], [(0, 3)] * 6
    scores[first], spans_[first] = 7.0, (window, window + 11)
    scores[second], spans_[second] = 4.0, (sailor, sailor + 12)
    given = predictions(scores, spans_, [9.0] * 6)
    numbers = made.recipe.score(given, made.rows["train"])
    # "window near" against "window near the harbour": 2 of 2 words right, 2 of 3 found ("the" is no word).
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
    loop = made.loop()
    batch = made.recipe.collate(list(made.rows["train"]))
    outputs = loop.model(**{k: v for k, v in batch.items() if k in made.recipe.processor.model_input_names})
    outputs.start_logits, outputs.end_logits = (torch.zeros(3, 16) for _ in range(2))
    outputs.start_logits[:, 9], outputs.end_logits[:, 10] = 2.0, 3.0
    outputs.start_logits[:, 1] = 100.0  # in the question, where no answer is
    outputs.start_logits[:, 0], outputs.end_logits[:, 0] = 0.25, 0.5
    found = made.recipe.predictions(loop.model, batch, outputs)
    assert found["score"].tolist() == [5.0, 5.0, 2.0]  # the last window ends before position 10
    assert found["nothing"].tolist() == [0.75] * 3
    assert CONTEXT[found["begin"][0] : found["end"][0]] == "window near"


def test_answers_longer_than_asked_for_are_not_given():
    made = prepared([row()], max_answer=1)
    loop = made.loop()
    batch = made.recipe.collate(list(made.rows["train"]))
    outputs = loop.recipe.loss(loop.model, batch).outputs
    found = made.recipe.predictions(loop.model, batch, outputs)
    assert all(" " not in CONTEXT[b:e] for b, e in zip(found["begin"], found["end"], strict=True))


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
    assert made.rows["train"]["answers"][3] == []
    assert made.rows["train"]["start_positions"][3:] == [0, 0, 0]


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
    loop = made.loop()
    batch = made.recipe.collate(list(made.rows["train"]))
    found = made.recipe.predictions(loop.model, batch, loop.recipe.loss(loop.model, batch).outputs)
    numbers = made.recipe.score({k: v.detach().numpy() for k, v in found.items()}, made.rows["train"])
    assert numbers["no_answer_accuracy"] == 100.0
