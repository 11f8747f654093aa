"""SQuAD's scores against numbers worked out by hand from the definitions in its official scripts."""

from __future__ import annotations

import math

import pytest

from taskrecipe.contrib.squad import exact_match, f1, normalize_answer, score_answers, score_with_silence


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("a.b-c", "abc"),
        ("An apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("the", ""),
        ("“Zürich”", "“zürich”"),
    ],
)
def test_answers_are_compared_without_case_punctuation_articles_and_space(answer, expected):
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("predicted", "right", "expected"),
    [
        ("the river Seine", "Seine", 2 / 3),  # 1 of 2 words right, 1 of 1 found
        ("in Paris in France", "in Paris", 4 / 6),  # a repeated word counts as often as it is wanted
        ("Paris", "London", 0.0),
        ("Seine.", "the seine", 1.0),
        ("", "Seine", 0.0),
        ("", "", 0.0),
    ],
)
def test_f1_is_of_words(predicted, right, expected):
    assert f1(predicted, right) == pytest.approx(expected)


def test_the_nearest_right_answer_counts():
    """F1: 1, 2/3 (against 'Seine'), 0; exact: 1, 0, 0."""
    predicted = ["1889", "river Seine", "Lyon"]
    answers = [["in 1889", "1889"], ["the Seine", "Seine river in Paris"], ["Paris"]]
    second = max(2 * 1 / (2 + 1), 2 * 2 / (2 + 4))
    assert score_answers(predicted, answers) == pytest.approx(
        {"f1": 100 * (1 + second + 0) / 3, "exact_match": 100 / 3}
    )


def test_no_answer_is_right_where_there_is_none_and_wrong_elsewhere():
    """Two questions with an answer (1, and silence where there is one), two without (silence, and an answer)."""
    numbers = score_with_silence(["Seine", "", "", "Paris"], [["the Seine"], ["Lyon"], [], []])
    assert numbers == {
        "f1": 50.0,
        "exact_match": 50.0,
        "has_answer_f1": 50.0,
        "has_answer_exact_match": 50.0,
        "no_answer_accuracy": 50.0,
    }


def test_an_answer_that_is_only_an_article_is_none():
    assert score_with_silence([""], [["the", "."]])["no_answer_accuracy"] == 100.0


def test_without_such_questions_their_score_has_no_value():
    assert math.isnan(score_with_silence(["Seine"], [["Seine"]])["no_answer_accuracy"])
    assert math.isnan(score_with_silence(["Seine"], [[]])["has_answer_f1"])


def test_exact_match_is_all_or_nothing():
    assert [exact_match("The Seine", right) for right in ("seine", "seine river")] == [1.0, 0.0]
