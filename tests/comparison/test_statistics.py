"""Intervals that cover what they should, p-values that are uniform where nothing differs, and scipy as the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics
from tests.support.evidence import RESAMPLES, resample

from taskrecipe.comparison.row_metrics import CORRELATIONS, LabelPairs, RowMeans, label_metrics
from taskrecipe.comparison.statistics import (
    Interval,
    iterate_swaps,
    mean_interval,
    paired_interval,
    percentile_interval,
    seeds_interval,
    sign_flip_p_value,
    unpaired_interval,
)

NAMES = ["accuracy", "macro_f1", "matthews_correlation", "f1"]


def label_pairs(name: str, actual: np.ndarray, first: np.ndarray, second: np.ndarray, classes: int) -> LabelPairs:
    """The metric of labels with that name; f1 is that of the last class."""
    return LabelPairs(label_metrics(name, classes)[0], actual, first, second, classes)


def plain_metric(name: str, actual: np.ndarray, predicted: np.ndarray, classes: int) -> float:
    """The same metric written down again, from the table of all pairs of labels."""
    table = np.zeros((classes, classes))
    np.add.at(table, (actual, predicted), 1)
    if name == "accuracy":
        return np.trace(table) / table.sum()
    if name == "matthews_correlation":
        codes = np.eye(classes)
        one, other = codes[actual] - codes[actual].mean(0), codes[predicted] - codes[predicted].mean(0)
        spread = (one**2).sum() * (other**2).sum()
        return float((one * other).sum() / math.sqrt(spread)) if spread > 1e-12 else 0.0
    whole = table.sum(0) + table.sum(1)
    each = np.divide(2 * np.diag(table), whole, out=np.zeros(classes), where=whole > 0)
    return float(each[-1] if name == "f1" else each.mean())


# Against scipy and scikit-learn ---------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9))
def test_few_sign_flips_are_all_tried_as_scipy_does(differences: list[int]) -> None:
    values = np.array(differences) / 4
    found = stats.permutation_test(
        (values, np.zeros_like(values)), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=5000
    )
    assert sign_flip_p_value(values) == pytest.approx(found.pvalue, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(NAMES), st.integers(2, 4))
def test_swaps_of_labels_are_all_tried_as_scipy_does(data: st.DataObject, name: str, classes: int) -> None:
    labels = st.lists(st.integers(0, classes - 1), min_size=6, max_size=6)
    actual, first, second = (np.array(data.draw(labels)) for _ in range(3))

    def statistic(one: np.ndarray, other: np.ndarray) -> float:
        return plain_metric(name, actual, other, classes) - plain_metric(name, actual, one, classes)

    found = stats.permutation_test(
        (first, second), statistic, permutation_type="samples", n_resamples=5000, vectorized=False
    )
    assert label_pairs(name, actual, first, second, classes).p_value() == pytest.approx(found.pvalue, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("classes", [2, 5, 16])
def test_metrics_of_labels_are_those_of_scikit_learn(name: str, classes: int) -> None:
    random = np.random.default_rng(classes)
    actual, first, second = random.integers(0, classes, (3, 50))
    functions = {
        "accuracy": metrics.accuracy_score,
        "matthews_correlation": metrics.matthews_corrcoef,
        "macro_f1": lambda a, b: metrics.f1_score(a, b, labels=range(classes), average="macro", zero_division=0.0),
        "f1": lambda a, b: metrics.f1_score(a, b, labels=[classes - 1], average=None, zero_division=0.0)[0],
    }
    expected = [functions[name](actual, one) for one in (first, second)]
    assert label_pairs(name, actual, first, second, classes).values() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("classes", [3, 40])
def test_random_swaps_of_many_rows_agree_with_scipy(name: str, classes: int) -> None:
    random = np.random.default_rng(classes)
    if name == "f1" and classes == 40:
        assert label_metrics(name, classes) == []
        return
    actual = random.integers(0, classes, 150)
    first = np.where(random.random(150) < 0.6, actual, random.integers(0, classes, 150))
    second = np.where(random.random(150) < 0.25, actual, first)

    def statistic(one: np.ndarray, other: np.ndarray) -> float:
        return plain_metric(name, actual, other, classes) - plain_metric(name, actual, one, classes)

    found = stats.permutation_test(
        (first, second), statistic, permutation_type="samples", n_resamples=400, vectorized=False, rng=0
    )
    assert label_pairs(name, actual, first, second, classes).p_value() == pytest.approx(found.pvalue, abs=0.06)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_correlations_and_their_swaps_agree_with_scipy(name: str) -> None:
    random = np.random.default_rng(5)
    actual = random.normal(size=10).round(1)
    first, second = (actual + scale * random.normal(size=10).round(1) for scale in (1.5, 0.4))
    correlate = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[name]
    pairs = CORRELATIONS[name](actual, first, second)
    assert pairs.values() == pytest.approx([correlate(actual, one).statistic for one in (first, second)], abs=1e-12)
    found = stats.permutation_test(
        (first, second),
        lambda a, b: correlate(actual, b).statistic - correlate(actual, a).statistic,
        permutation_type="samples",
        n_resamples=5000,
        vectorized=False,
    )
    assert pairs.p_value() == pytest.approx(found.pvalue, abs=1e-12)


def test_the_bootstrap_interval_is_scipys_percentile_interval() -> None:
    random = np.random.default_rng(8)
    first, second = random.normal(size=300), random.normal(0.2, size=300)
    draws = np.array([resample(300, number) for number in range(RESAMPLES)])
    ours = paired_interval(first[draws].mean(1), second[draws].mean(1))
    theirs = stats.bootstrap((second - first,), np.mean, method="percentile", n_resamples=9999, rng=1)
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=8),
    st.lists(st.floats(-5, 5), min_size=2, max_size=8),
    st.booleans(),
)
def test_intervals_over_seeds_are_scipys(first: list[float], second: list[float], paired: bool) -> None:
    size = min(len(first), len(second))
    if paired:
        first, second = first[:size], second[:size]
    spread = np.ptp(np.subtract(first[:size], second[:size])) if paired else min(np.ptp(first), np.ptp(second))
    if spread < 1e-3:
        return
    test = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=False)
    found = seeds_interval(first, second, paired=paired)
    assert found is not None
    assert (found[0].low, found[0].high) == pytest.approx(tuple(test.confidence_interval(0.95)), rel=1e-6, abs=1e-6)
    assert found[1] == pytest.approx(test.pvalue, rel=1e-6, abs=1e-9)
    mean = mean_interval(first)
    assert mean is not None
    if np.ptp(first) > 1e-3:
        expected = stats.ttest_1samp(first, 0).confidence_interval(0.95)
        assert (mean.low, mean.high) == pytest.approx(tuple(expected), rel=1e-6, abs=1e-6)


# Laws -----------------------------------------------------------------------------------------------


def test_the_order_of_the_runs_turns_the_interval_and_keeps_the_p_value() -> None:
    random = np.random.default_rng(2)
    first, second = random.random(200), random.random(200)
    forward, backward = paired_interval(first, second), paired_interval(second, first)
    assert forward is not None
    assert backward is not None
    assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low))
    assert RowMeans(first, second).p_value() == RowMeans(second, first).p_value()


def test_resamples_of_different_rows_never_meet_their_own_number() -> None:
    same = np.random.default_rng(6).normal(size=400)
    paired, unpaired = paired_interval(same, same), unpaired_interval(same, same)
    assert paired == Interval(0.0, 0.0)
    assert unpaired is not None
    assert unpaired.high - unpaired.low > 1.3 * 3.92 * 0.9  # the spread of a difference, not of one of the two


def test_equal_runs_have_a_p_value_of_one() -> None:
    same = np.array([0, 1, 1, 0])
    assert RowMeans(same.astype(float), same.astype(float)).p_value() == 1.0
    assert label_pairs("f1", same, same, same, 2).p_value() == 1.0
    assert sign_flip_p_value(np.zeros(0)) == 1.0


def test_a_p_value_from_random_patterns_is_never_zero() -> None:
    assert sign_flip_p_value(np.ones(100)) == 1 / 10_000
    assert sign_flip_p_value(np.ones(100), resamples=99) == 1 / 100


def test_seeds_without_any_spread_are_certain_and_one_seed_says_nothing() -> None:
    assert seeds_interval([0.5], [0.6, 0.7], paired=False) is None
    assert mean_interval([0.5]) is None
    assert mean_interval([0.5, 0.5]) == Interval(0.5, 0.5)
    equal = seeds_interval([0.5, 0.5], [0.5, 0.5], paired=True)
    apart = seeds_interval([0.5, 0.5], [0.75, 0.75], paired=False)
    assert equal is not None
    assert apart is not None
    assert (equal[0].low, equal[0].high, equal[1]) == (0.0, 0.0, 1.0)
    assert (apart[0].low, apart[0].high, apart[1]) == (0.25, 0.25, 0.0)


def test_undefined_resamples_are_left_out_unless_they_are_most() -> None:
    values = np.r_[np.arange(60.0), [math.nan] * 40]
    assert percentile_interval(values) == percentile_interval(np.arange(60.0))
    assert percentile_interval(np.r_[np.arange(60.0), [math.nan] * 70]) is None
    assert percentile_interval(np.arange(40.0)) is None


@pytest.mark.parametrize("rows", [0, 1, 13, 14, 5000])
def test_patterns_are_all_there_or_random_and_always_the_same(rows: int) -> None:
    patterns = np.concatenate(list(iterate_swaps(rows, 9999)))
    again = np.concatenate(list(iterate_swaps(rows, 9999)))
    assert np.array_equal(patterns, again)
    if rows <= 13:
        assert len(np.unique(patterns, axis=0)) == len(patterns) == 2**rows
    else:
        assert len(patterns) == 9999
        assert abs(patterns.mean() - 0.5) < 0.02
    assert patterns.shape[1] == rows


# Simulations ----------------------------------------------------------------------------------------


def share_covered(trials: int, rows: int, paired: bool) -> float:
    """The share of simulated pairs of classifiers whose interval of the difference holds the true difference."""
    random = np.random.default_rng([rows, paired])
    draws = np.array([resample(rows, number) for number in range(RESAMPLES)])
    weights = np.stack([np.bincount(draw, minlength=rows) for draw in draws]) / rows
    covered = 0
    for _ in range(trials):
        hard = random.random(rows)
        other = hard if paired else random.random(rows)
        first = (random.random(rows) < 0.95 - 0.5 * hard).astype(float)
        second = (random.random(rows) < 0.99 - 0.5 * other).astype(float)
        interval = (paired_interval if paired else unpaired_interval)(weights @ first, weights @ second)
        assert interval is not None
        covered += interval.low <= 0.04 <= interval.high
    return covered / trials


@pytest.mark.parametrize("paired", [True, False])
def test_95_percent_intervals_hold_the_truth_about_95_times_of_100(paired: bool) -> None:
    assert 0.91 <= share_covered(400, 150, paired) <= 0.985


@pytest.mark.chaos
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("rows", [60, 400, 1500])
def test_intervals_hold_the_truth_at_any_size(rows: int, paired: bool) -> None:
    assert 0.93 <= share_covered(4000, rows, paired) <= 0.965


def null_p_values(trials: int, rows: int) -> np.ndarray:
    """P-values of the loss of runs that differ by chance only."""
    random = np.random.default_rng(rows)
    found = []
    for _ in range(trials):
        hard = random.gamma(2.0, size=rows)
        found.append(sign_flip_p_value(random.gamma(2.0, size=rows) * hard - random.gamma(2.0, size=rows) * hard, 499))
    return np.array(found)


def test_p_values_are_uniform_where_nothing_differs() -> None:
    assert stats.kstest(null_p_values(500, 60), "uniform").pvalue > 0.01


@pytest.mark.chaos
def test_p_values_are_uniform_over_many_trials() -> None:
    values = null_p_values(20_000, 100)
    assert np.abs(np.mean(values <= 0.05) - 0.05) < 0.006
    assert np.abs(np.mean(values <= 0.01) - 0.01) < 0.003


def test_p_values_of_labels_are_no_smaller_than_they_should_be_where_nothing_differs() -> None:
    random = np.random.default_rng(3)
    found = []
    for _ in range(200):
        actual = random.integers(0, 2, 80)
        first, second = (np.where(random.random(80) < 0.8, actual, 1 - actual) for _ in range(2))
        found.append(label_pairs("f1", actual, first, second, 2).p_value())
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(found) <= level) <= level + 0.06
