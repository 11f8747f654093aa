"""The numbers of a report are those of the libraries that people trust."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from tests.support.reported_runs import LABELS, class_rows, map_rows, value_rows, write_evidence, write_run

from taskrecipe.report.chart import thin_points
from taskrecipe.report.classes import (
    chart_calibration,
    make_confusion,
    read_pairs,
    tabulate_classes,
)
from taskrecipe.report.evidence import Evidence, read_evidence
from taskrecipe.report.history import read_history
from taskrecipe.report.maps import tabulate_maps
from taskrecipe.report.objects import overlap, tabulate_objects, unpack_mask
from taskrecipe.report.rows import choose_rows
from taskrecipe.report.scale import choose_ticks, fit_range, format_ticks
from taskrecipe.report.slices import tabulate_slices
from taskrecipe.report.values import chart_values
from taskrecipe.vision import pack_masks


def evidence(tmp_path: Path, rows: list, **about: object) -> Evidence:
    folder = write_run(tmp_path / "run")
    write_evidence(folder, rows, **about)
    found, problems = read_evidence(folder / "predictions")
    assert problems == []
    return found[0]


def test_precision_and_recall_are_those_of_scikit_learn(tmp_path: Path) -> None:
    rows = class_rows()
    found = evidence(tmp_path, rows, labels=LABELS)
    pairs = read_pairs(found)
    right = [row["reference"]["label"] for row in rows]
    predicted = [row["prediction"]["label"] for row in rows]
    expected = precision_recall_fscore_support(right, predicted, labels=LABELS)
    table = tabulate_classes(found, pairs)
    assert [row[0] for row in table.rows] == LABELS
    for place, values in ((3, expected[0]), (4, expected[1]), (5, expected[2]), (1, expected[3])):
        assert [row[place] for row in table.rows] == pytest.approx(list(values))
    for row in table.rows:
        scores = [one["prediction"]["probabilities"][row[0]] for one in rows]
        assert row[6] == pytest.approx(average_precision_score([one == row[0] for one in right], scores), abs=1e-9)


def test_every_cell_of_the_confusion_matrix_has_rows_behind_it(tmp_path: Path) -> None:
    found = evidence(tmp_path, class_rows(), labels=LABELS)
    pairs = read_pairs(found)
    matrix = np.array(make_confusion(found, pairs).counts)
    assert matrix.sum() == 400
    shown = choose_rows(found, pairs)
    behind = {(int(pairs.right[place]), int(pairs.predicted[place])) for place in shown}
    assert {(a, b) for a in range(4) for b in range(4) if matrix[a, b]} == behind


def test_the_worst_rows_are_those_with_the_greatest_loss(tmp_path: Path) -> None:
    rows = class_rows()
    found = evidence(tmp_path, rows, labels=LABELS)
    chosen = [place for place, sets in choose_rows(found, read_pairs(found)).items() if "worst" in sets]
    assert chosen == sorted(range(400), key=lambda place: -rows[place]["loss"])[:50]
    assert sum("random" in sets for sets in choose_rows(found, None).values()) == 20


def test_the_calibration_error_is_zero_where_confidence_is_right(tmp_path: Path) -> None:
    rows = class_rows(100)
    for number, row in enumerate(rows):
        row["confidence"], row["correct"] = 0.75, number % 4 != 0
    chart = chart_calibration(evidence(tmp_path, rows, labels=LABELS))
    assert chart is not None
    assert "Expected error 0.0000 on 100 rows" in chart.note
    assert chart.series[0].y == [0.75]


def test_slices_are_sorted_by_how_bad_they_are(tmp_path: Path) -> None:
    rows = class_rows(90)
    for row in rows:
        row["correct"] = row["input"]["channel"] != "phone"
    table = tabulate_slices(evidence(tmp_path, rows, labels=LABELS))
    assert table is not None
    assert list(table.rows[0][:4]) == ["channel", "phone", 30, 0.0]
    assert {"length of text"} <= {row[0] for row in table.rows}


def test_residuals_count_every_row(tmp_path: Path) -> None:
    rows = value_rows()
    scatter, residuals = chart_values(evidence(tmp_path, rows))
    assert len(scatter.series[0]) == len(rows)
    assert sum(value for _, value in residuals.bars) == len(rows)


def test_pixels_that_do_not_count_are_left_out(tmp_path: Path) -> None:
    table = tabulate_maps(evidence(tmp_path, map_rows(), labels=["ground", "sky"]))
    assert table is not None
    assert [row[0] for row in table.rows] == ["ground", "sky"]
    assert sum(row[4] for row in table.rows) == pytest.approx(1.0)
    assert all(0.7 < row[1] < 1.0 for row in table.rows)


@given(st.integers(0, 2**32 - 1))
def test_masks_are_unpacked_as_they_were_packed(seed: int) -> None:
    masks = np.random.default_rng(seed).random((2, 7, 5)) > 0.5
    packed = pack_masks(masks)
    assert all((unpack_mask(one) == mask).all() for one, mask in zip(packed, masks, strict=True))
    shared, either = (masks[0] & masks[1]).sum(), (masks[0] | masks[1]).sum()
    assert overlap({"mask": packed[0]}, {"mask": packed[1]}) == pytest.approx(shared / either)


def test_the_overlap_of_boxes() -> None:
    box = {"box": [0, 0, 10, 10]}
    assert overlap(box, box) == 1.0
    assert overlap(box, {"box": [5, 0, 10, 10]}) == pytest.approx(1 / 3)
    assert overlap(box, {"box": [20, 0, 10, 10]}) == 0.0
    assert overlap({"box": [0, 0, 0, 0]}, {"box": [0, 0, 0, 0]}) == 0.0


def test_crowds_are_neither_found_nor_missed(tmp_path: Path) -> None:
    crowd = {"label": "red", "box": [50, 50, 20, 20], "crowd": True}
    right = [{"label": "red", "box": [0, 0, 10, 10]}, crowd]
    found = [{"label": "red", "score": 0.9, "box": [0, 0, 10, 10]}, {"label": "red", "score": 0.8, "box": crowd["box"]}]
    rows = [{"reference": right, "prediction": found}]
    table, sizes = tabulate_objects(evidence(tmp_path, rows, labels=["red"], metrics={"map/red": 0.5}))
    assert table.rows == [["red", 1, 1, 1, 1.0, 1.0, 0.5]]
    assert [row[2] for row in sizes.rows] == [1, 0, 0]


# Curves and scales ---------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=900)


@given(VALUES, st.integers(10, 400))
def test_a_thinned_curve_keeps_its_ends_and_its_peaks(values: list[float], most: int) -> None:
    kept = thin_points(values, most)
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    assert len(kept) <= most
    assert {min(values), max(values)} <= {values[place] for place in kept}


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_ticks_are_round_and_inside(low: float, width: float) -> None:
    low, high = fit_range([low, low + width])
    ticks = choose_ticks(low, high)
    assert len(ticks) <= 13
    room = (high - low) * 1e-6
    assert all(low - room <= tick <= high + room for tick in ticks)
    if len(ticks) > 1 and (high - low) > 1e-6 * max(abs(low), abs(high)):
        assert len(set(format_ticks(ticks))) == len(ticks)


def test_the_time_between_two_sessions_does_not_count() -> None:
    events = [("about", 0), ("start", 1), ("update", 2), ("about", 1000), ("start", 1001), ("update", 1002)]
    records = [{"event": name, "time": float(time), "step": 1} for name, time in events]
    records[4]["resumed_from"] = 1
    history = read_history(records)
    assert [moment.seconds for moment in history.updates] == [2.0, 4.0]
    assert history.resumes == 1
    assert math.isclose(history.seconds or 0, 4.0)
