"""`compare`: what differs between runs, how sure a difference is, and which rows changed."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats
from tests.support.evidence import SPEC, write_classifier, write_evidence, write_run

from taskrecipe import UsageError, compare

ROWS = 300


@pytest.fixture
def labels() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right labels, those of a fair classifier, and those of a better one."""
    random = np.random.default_rng(4)
    actual = random.integers(0, 2, ROWS)
    first = np.where(random.random(ROWS) < 0.75, actual, 1 - actual)
    second = np.where(random.random(ROWS) < 0.45, actual, first)
    return actual, first, second


@pytest.fixture
def pair(tmp_path: Path, labels: Any) -> tuple[Path, Path]:
    """Two runs with other learning rates, the second one better."""
    actual, first, second = labels
    runs = write_run(tmp_path / "base"), write_run(tmp_path / "new", spec(rate="3e-05 # --set"))
    write_classifier(runs[0], actual, first)
    write_classifier(runs[1], actual, second)
    return runs


def spec(seed: int = 42, rate: str = "5e-05 # ../spec.toml:9") -> str:
    return SPEC.replace("seed = 42", f"seed = {seed}").replace("5e-05 # ../spec.toml:9", rate)


def metric(found: Any, name: str, number: int = 0) -> Any:
    return next(one for one in found.comparisons[number].metrics if one.metric == name)


# Specs and conditions -------------------------------------------------------------------------------


def test_keys_of_the_spec_differ_with_where_each_value_came_from(pair: tuple[Path, Path]) -> None:
    [one] = compare(*pair).spec
    source = f"{pair[0].parent}/spec.toml:9"
    assert (one.key, one.values, one.origins) == ("train.learning_rate", (5e-5, 3e-5), (source, "--set"))


def test_data_packages_processes_and_machine_differ_by_name(tmp_path: Path) -> None:
    def environment(torch: str, data: str, host: str, processes: int) -> dict[str, Any]:
        return {
            "python": "3.11.7",
            "packages": {"torch": torch, "numpy": "2.4.6"},
            "data": {"train": data, "validation": "c"},
            "hub": {"data": data, "model": "e"},
            "machine": {"host": host, "cores": 2},
            "processes": processes,
        }

    first = write_run(tmp_path / "one", environment=environment("2.12.0", "a", "left", 1))
    second = write_run(tmp_path / "two", environment=environment("2.13.0", "b", "right", 2))
    found = {(one.subject, one.key): one.values for one in compare(first, second).conditions}
    assert found == {
        ("data", "fingerprint.train"): ("a", "b"),
        ("data", "commit"): ("a", "b"),
        ("packages", "torch"): ("2.12.0", "2.13.0"),
        ("processes", "processes"): (1, 2),
        ("machine", "host"): ("left", "right"),
    }


# Metrics --------------------------------------------------------------------------------------------


def test_a_real_difference_is_found_with_its_interval_and_p_value(pair: tuple[Path, Path]) -> None:
    found = compare(*pair)
    for name in ("f1", "accuracy", "loss"):
        one = metric(found, name)
        assert one.verdict == "better", one
        assert one.interval.low <= one.difference <= one.interval.high
        assert one.p_value < 0.01
    assert metric(found, "f1").method == "paired bootstrap of 300 rows, swaps"
    assert metric(found, "loss").method == "paired bootstrap of 300 rows, sign flips"
    assert metric(compare(*pair[::-1]), "f1").verdict == "worse"


def test_the_interval_is_that_of_the_differences_of_the_bootstrap_files(pair: tuple[Path, Path]) -> None:
    columns = [pq.read_table(run / "predictions/validation.bootstrap.parquet")["f1"].to_numpy() for run in pair]
    one = metric(compare(*pair), "f1")
    expected = np.quantile(columns[1] - columns[0], [0.025, 0.975])
    assert [one.interval.low, one.interval.high] == pytest.approx(expected, abs=1e-12)


def test_the_p_value_of_accuracy_is_the_exact_test_of_mcnemar(tmp_path: Path) -> None:
    actual = np.zeros(40, dtype=int)
    first, second = actual.copy(), actual.copy()
    first[:9], second[9:12] = 1, 1  # nine rows fixed, three broken
    runs = [write_run(tmp_path / name, spec(rate=rate)) for name, rate in (("one", "1e-4 # a"), ("two", "2e-4 # b"))]
    for run, predicted in zip(runs, (first, second), strict=True):
        write_classifier(run, actual, predicted)
    found = compare(*runs)
    assert metric(found, "accuracy").p_value == pytest.approx(stats.binomtest(3, 12).pvalue)
    [rows] = found.comparisons[0].rows
    assert (rows.fixed, rows.broken, rows.unchanged) == (9, 3, 28)


def test_runs_that_differ_by_chance_are_not_called_better(tmp_path: Path, labels: Any) -> None:
    actual, first, _ = labels
    second = first.copy()
    moved = np.r_[np.flatnonzero(first == actual)[:6], np.flatnonzero(first != actual)[:7]]
    second[moved] = 1 - second[moved]
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", spec(rate="1e-05 # x"))]
    for run, predicted in zip(runs, (first, second), strict=True):
        write_classifier(run, actual, predicted)
    assert {one.verdict for one in compare(*runs).comparisons[0].metrics} == {"no clear difference"}


def test_correlations_and_scores_of_rows_have_p_values_and_other_metrics_say_why_not(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    actual = random.normal(size=120)
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", spec(rate="1e-05 # x"))]
    for run, noise in zip(runs, (2.0, 0.4), strict=True):
        value = actual + noise * random.normal(size=120)
        errors = (value - actual) ** 2
        columns = {
            "reference": [json.dumps({"value": float(one)}) for one in actual],
            "prediction": [json.dumps({"value": float(one)}) for one in value],
            "score.mse": errors,
        }
        metrics = {
            "pearson": lambda rows, value=value: stats.pearsonr(value[rows], actual[rows], axis=-1).statistic,
            "spearman": lambda rows, value=value: (
                stats.pearsonr(
                    stats.rankdata(value[rows], axis=-1), stats.rankdata(actual[rows], axis=-1), axis=-1
                ).statistic
            ),
            "mse": lambda rows, errors=errors: errors[rows].mean(-1),
            "rmse": lambda rows, errors=errors: np.sqrt(errors[rows].mean(-1)),
        }
        write_evidence(run, columns, metrics, directions={"rmse": "min"})
    found = compare(*runs)
    for name in ("pearson", "spearman", "mse"):
        assert (metric(found, name).verdict, metric(found, name).p_value < 0.01) == ("better", True)
    unknown = metric(found, "rmse")
    assert (unknown.p_value, unknown.verdict) == (None, "better")  # by its interval
    assert unknown.reason == "no p-value: how the predictions of rows make up this metric is not known"
    [rows] = found.comparisons[0].rows
    assert rows.measure == "score.mse"
    assert rows.fixed > rows.broken


def test_a_metric_that_is_no_function_of_rows_has_no_interval(pair: tuple[Path, Path]) -> None:
    for run in pair:
        path = run / "predictions/validation.bootstrap.parquet"
        pq.write_table(pq.read_table(path).drop(["f1"]), path)
    one = metric(compare(*pair), "f1")
    assert (one.interval, one.p_value, one.verdict) == (None, None, "unknown")
    assert one.reason == "it is not a function of single rows"


def test_only_a_part_of_the_rows_may_be_kept(tmp_path: Path, labels: Any) -> None:
    actual, first, second = labels
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", spec(rate="1e-05 # x"))]
    for run, predicted in zip(runs, (first, second), strict=True):
        write_classifier(run, actual, predicted, rows=50_000)
    one = metric(compare(*runs), "f1")
    assert one.method == "paired bootstrap of 50000 rows, swaps of 300 kept rows"
    assert one.p_value is not None


# Other rows -----------------------------------------------------------------------------------------


def test_other_data_is_compared_unpaired_and_says_so(tmp_path: Path, labels: Any) -> None:
    actual, first, second = labels
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", spec(rate="1e-05 # x"))]
    write_classifier(runs[0], actual, first)
    write_classifier(runs[1], actual[:200], second[:200], data="other rows")
    found = compare(*runs)
    [comparison] = found.comparisons
    assert comparison.notes == ["the rows of validation differ, so they can't be paired: 300 and 200 rows"]
    assert comparison.rows == []
    one = metric(found, "f1")
    assert (one.p_value, one.reason) == (None, "the rows differ: no p-value")
    assert one.method == "bootstrap of 300 and 200 different rows"
    paired = metric(compare(*_same_rows(tmp_path / "again", labels)), "f1")
    assert one.interval.high - one.interval.low > paired.interval.high - paired.interval.low


def _same_rows(folder: Path, labels: Any) -> list[Path]:
    actual, first, second = labels
    runs = [write_run(folder / "one"), write_run(folder / "two", spec(rate="1e-05 # x"))]
    for run, predicted in zip(runs, (first, second), strict=True):
        write_classifier(run, actual, predicted)
    return runs


def test_runs_without_evidence_are_compared_by_their_metrics(tmp_path: Path) -> None:
    found = compare(write_run(tmp_path / "one"), write_run(tmp_path / "two", spec(rate="1e-05 # x")))
    assert metric(found, "f1").to_json() == {
        "metric": "f1",
        "direction": "max",
        "first": 0.5,
        "second": 0.5,
        "difference": 0.0,
        "interval": None,
        "p_value": None,
        "verdict": "unknown",
        "method": None,
        "reason": "not both runs have predictions for it",
    }
    assert found.notes[0] == "one has no predictions: only its metrics are compared, without intervals"


def test_metrics_of_another_split_have_its_name_and_old_predictions_are_noticed(tmp_path: Path, labels: Any) -> None:
    actual, first, second = labels
    best = {"metric": "f1", "value": 0.5, "step": 12, "metrics": {"f1": 0.5}}
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", spec(rate="1e-05 # x"), {"best": best})]
    for run, predicted in zip(runs, (first, second), strict=True):
        write_classifier(run, actual, predicted, split="test")
    found = compare(*runs)
    assert [one.metric for one in found.comparisons[0].metrics] == ["f1", "test/f1", "test/accuracy", "test/loss"]
    assert [one.verdict for one in found.comparisons[0].metrics] == ["unknown", "better", "better", "better"]
    assert found.notes == ["two: predictions of test are from update 9, the best is 12"]


def test_damaged_evidence_is_named_and_the_rest_is_compared(pair: tuple[Path, Path]) -> None:
    path = pair[1] / "predictions/validation.parquet"
    for content in (b"", b"PAR1 nothing", path.read_bytes()[:-100]):
        path.write_bytes(content)
        found = compare(*pair)
        assert any(note.startswith(f"{path} can't be read") for note in found.notes)
        assert metric(found, "loss").interval is None


# Rows that changed ----------------------------------------------------------------------------------


def test_rows_fixed_and_broken_are_counted_and_the_first_ones_shown(pair: tuple[Path, Path], labels: Any) -> None:
    actual, first, second = labels
    fixed = np.flatnonzero((first != actual) & (second == actual))
    [rows] = compare(*pair, rows=2).comparisons[0].rows
    assert (rows.split, rows.measure, rows.rows) == ("validation", "correct", ROWS)
    assert (rows.fixed, rows.broken) == (len(fixed), 0)
    assert [example.row for example in rows.examples] == fixed[:2].tolist()
    example = rows.examples[0]
    names = ["no", "yes"]
    assert example.input == {"sentence": f"sentence {fixed[0]}"}
    assert example.reference == {"label": names[actual[fixed[0]]]}
    assert example.first["label"] == names[first[fixed[0]]]
    assert example.second["label"] == names[second[fixed[0]]]
    assert compare(*pair, rows=0).comparisons[0].rows[0].examples == ()


# Seeds ----------------------------------------------------------------------------------------------


def write_seeds(folder: Path, rate: str, values: dict[int, float]) -> list[Path]:
    runs = []
    for seed, value in values.items():
        best = {"metric": "f1", "value": value, "step": 9, "metrics": {"f1": value}}
        runs.append(write_run(folder / f"seed-{seed}", spec(seed, f"{rate} # ../spec.toml:9"), {"best": best}))
    return runs


FIRST, SECOND = {1: 0.80, 2: 0.82, 3: 0.81}, {1: 0.84, 2: 0.87, 3: 0.85}


def test_seeds_of_one_spec_are_taken_together(tmp_path: Path) -> None:
    found = compare(*write_seeds(tmp_path / "a", "1e-5", FIRST), *write_seeds(tmp_path / "b", "2e-5", SECOND))
    assert [len(side.runs) for side in found.sides] == [3, 3]
    assert [one.key for one in found.spec] == ["seed", "train.learning_rate"]
    one = metric(found, "f1")
    test = stats.ttest_rel(list(SECOND.values()), list(FIRST.values()))
    assert one.difference == pytest.approx(np.mean(list(SECOND.values())) - np.mean(list(FIRST.values())))
    assert (one.interval.low, one.interval.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert (one.p_value, one.verdict) == (pytest.approx(test.pvalue), "better")
    assert one.method == "t interval over 3 seeds, paired"
    group = found.to_json()["seeds"][0]["metrics"]["f1"]
    expected = stats.ttest_1samp(list(FIRST.values()), 0).confidence_interval(0.95)
    assert group["interval"] == pytest.approx(tuple(expected))
    assert group["values"] == {str(seed): value for seed, value in FIRST.items()}


def test_other_seeds_are_compared_by_welch_and_a_single_one_has_no_spread(tmp_path: Path) -> None:
    first, second = write_seeds(tmp_path / "a", "1e-5", FIRST), write_seeds(tmp_path / "b", "2e-5", {7: 0.84, 8: 0.9})
    one = metric(compare(*first, *second), "f1")
    test = stats.ttest_ind([0.84, 0.9], list(FIRST.values()), equal_var=False)
    assert (one.p_value, one.method) == (pytest.approx(test.pvalue), "Welch's t, 3 and 2 seeds")
    alone = metric(compare(*first, second[0]), "f1")
    assert (alone.interval, alone.reason) == (None, "seed-7 has one seed: its spread is not known")


def test_runs_of_one_spec_alone_give_their_mean_and_are_compared_one_by_one(tmp_path: Path) -> None:
    found = compare(*write_seeds(tmp_path, "1e-5", FIRST))
    assert [len(side.runs) for side in found.sides] == [1, 1, 1]
    assert len(found.comparisons) == 2
    assert found.to_json()["seeds"][0]["metrics"]["f1"]["mean"] == pytest.approx(0.81)


def test_a_seed_that_comes_twice_counts_once(tmp_path: Path) -> None:
    first = [*write_seeds(tmp_path / "a", "1e-5", FIRST), *write_seeds(tmp_path / "again", "1e-5", FIRST)]
    second = write_seeds(tmp_path / "b", "2e-5", SECOND)
    once = metric(compare(*first[:3], *second), "f1")
    assert metric(compare(*first, *second), "f1").to_json() == once.to_json()


# The command ----------------------------------------------------------------------------------------


def test_the_first_run_is_the_baseline_of_all_others(tmp_path: Path, labels: Any) -> None:
    runs = []
    for number, rate in enumerate(("1e-5", "2e-5", "3e-5")):
        runs.append(write_run(tmp_path / f"run{number}", spec(rate=f"{rate} # a")))
        write_classifier(runs[-1], labels[0], labels[min(number, 1) + 1])
    found = compare(*runs)
    assert [(one.first.name, one.second.name) for one in found.comparisons] == [("run0", "run1"), ("run0", "run2")]
    assert metric(found, "f1", 0).difference == metric(found, "f1", 1).difference


def test_the_command_says_significant_differences_in_words(
    pair: tuple[Path, Path], recipe: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(pair[0].parent)
    done = recipe("compare", "base", "new")
    assert done.code == 0
    one = metric(compare(*pair), "f1")
    words = (
        f"better: f1 +{one.difference:.4f}, 95 % interval +{one.interval.low:.4f} … +{one.interval.high:.4f}, p < 0.001"
    )
    assert words in done.out
    assert "train.learning_rate  5e-05  (spec.toml:9)  3e-05  (--set)" in done.out
    assert "rows fixed, 0 broken" in done.out


def test_the_command_prints_seeds_as_mean_and_interval(tmp_path: Path, recipe: Any) -> None:
    runs = [*write_seeds(tmp_path / "a", "1e-5", FIRST), *write_seeds(tmp_path / "b", "2e-5", SECOND)]
    done = recipe("compare", *runs)
    assert done.code == 0
    assert "3 runs that differ in their seed only (1, 2, 3)" in done.out
    assert "  f1      0.8100 ± 0.0248" in done.out
    assert "better: f1 +0.0433, 95 % interval +0.0290 … +0.0577, p = 0.006" in done.out


def test_json_is_what_the_library_returns(pair: tuple[Path, Path], recipe: Any) -> None:
    printed = json.loads(recipe("compare", *pair, "--json", "--rows", "1").out)
    assert printed == json.loads(json.dumps(compare(*pair, rows=1).to_json()))
    assert list(printed) == ["runs", "sides", "spec", "conditions", "seeds", "comparisons", "notes"]


def test_text_from_data_can_t_change_the_terminal(pair: tuple[Path, Path], recipe: Any) -> None:
    path = pair[0] / "predictions/validation.parquet"
    table = pq.read_table(path)
    evil = [json.dumps({"sentence": "\x1b[2J\u202e"})] * len(table)
    column = table.column_names.index("input")
    pq.write_table(table.set_column(column, "input", [evil]), path)
    done = recipe("compare", *pair)
    assert done.code == 0
    assert "\\x1b[2J\\u202e" in done.out
    assert "\x1b" not in done.out


def test_what_is_no_run_and_a_single_run_are_refused(pair: tuple[Path, Path], recipe: Any) -> None:
    with pytest.raises(UsageError, match="name two runs or more"):
        compare(pair[0])
    done = recipe("compare", pair[0], pair[0].parent)
    assert (done.code, done.out) == (2, "")
    assert "is not the folder of a run" in done.err


def test_the_same_runs_in_any_pair_agree_on_who_is_better(tmp_path: Path, labels: Any) -> None:
    actual, first, second = labels
    runs = [write_run(tmp_path / name, spec(rate=f"{rate} # a")) for name, rate in (("a", "1e-5"), ("b", "2e-5"))]
    for run, predicted in zip(runs, (first, second), strict=True):
        write_classifier(run, actual, predicted)
    turned = {"better": "worse", "worse": "better"}
    for one, other in combinations(runs, 2):
        there, back = compare(one, other).comparisons[0], compare(other, one).comparisons[0]
        for a, b in zip(there.metrics, back.metrics, strict=True):
            assert a.verdict == turned.get(b.verdict, b.verdict)
            assert a.p_value == b.p_value
            assert (a.interval.low, a.interval.high) == pytest.approx((-b.interval.high, -b.interval.low))
        assert (there.rows[0].fixed, there.rows[0].broken) == (back.rows[0].broken, back.rows[0].fixed)


def test_the_guide_names_every_key_of_the_json(pair: tuple[Path, Path]) -> None:
    page = (Path(__file__).parents[2] / "core/cli/pages/compare.md").read_text()
    found = compare(*pair).to_json()
    [comparison] = found["comparisons"]
    keys = {
        *found,
        *found["runs"][0],
        *found["spec"][0],
        *comparison,
        *comparison["metrics"][0],
        *comparison["rows"][0],
    }
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_comparing_imports_nothing_heavy(pair: tuple[Path, Path]) -> None:
    script = """
import sys
from taskrecipe import compare
assert compare(*sys.argv[1:]).comparisons[0].metrics
print(*{"torch", "transformers", "datasets", "accelerate", "evaluate"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, pair)], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
