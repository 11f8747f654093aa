"""The report: made of the run's files alone, whatever state they are in, small, and safe to open."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.reported_runs import (
    LABELS,
    box_rows,
    class_rows,
    jpeg,
    make_log,
    map_rows,
    value_rows,
    write_bootstrap,
    write_evidence,
    write_run,
)

from taskrecipe import Run, UsageError, write_report
from taskrecipe.report.page import build_page, render_page
from taskrecipe.report.run_files import differing_keys, read_run
from taskrecipe.report.summary import tabulate_metrics

HOSTILE = '</script><script>window.harmed = true</script><img src=x onerror="window.harmed = true">&amp;\'\u2028'


class Tags(HTMLParser):
    """Collects the tags and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def render(*folders: Path) -> str:
    return render_page(build_page([read_run(folder) for folder in folders]))


def test_a_report_says_what_was_trained_how_well_and_how_to_go_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "tickets")
    write_evidence(folder, class_rows(), labels=LABELS)
    write_bootstrap(folder, f1=0.87)
    text = " ".join(Tags(Run(folder).report().read_text()).texts)
    for part in [
        "glue (custom), bert-base-cased",
        "best f1",
        "0.8701",  # the value after update 90, which is the best
        "95 %",
        "learning_rate",
        "specs/_base.toml:4",
        "tickets # old.csv",
        "techniques.0.name",
        "c0ffee with changes",
        "3 rows are in train and validation <b>too</b>",
        f"recipe predict {folder}" if (folder / "model").exists() else "recipe run",
        "recipe fingerprint",
        "from taskrecipe import Run",
        "ab" * 32,
        "Confusion matrix",
        "Calibration",
        "Slices, the worst first",
    ]:
        assert part in text, part


def test_the_report_is_a_function_of_the_folder_and_changes_nothing_else(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "tickets")
    write_evidence(folder, class_rows(), labels=LABELS)
    before = hash_files(folder)
    first = write_report([folder], tmp_path / "one.html").read_bytes()
    assert write_report([folder], tmp_path / "two.html").read_bytes() == first
    assert hash_files(folder) == before
    assert write_report([folder]) == folder / "report.html"


def hash_files(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["report", "watch"])
def test_looking_at_a_run_loads_nothing_heavy(command: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "tickets")
    write_evidence(folder, class_rows(40), labels=LABELS)
    script = """
import sys
from taskrecipe.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.exit(",".join({"torch", "transformers", "datasets", "accelerate", "evaluate"} & set(sys.modules)) or None)
"""
    done = subprocess.run([sys.executable, "-c", script, command, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_in_it_comes_from_elsewhere(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "boxes")
    write_evidence(folder, box_rows(), labels=["red", "blue"])
    for tag, attributes in Tags(render(folder)).tags:
        assert tag not in ("link", "iframe", "object", "embed")
        for name in ("src", "href", "action", "srcset"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/")), (tag, value)


@pytest.mark.parametrize("kind", ["classes", "values", "boxes", "maps", "nothing"])
def test_each_kind_of_prediction_has_its_figures(kind: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / kind)
    rows = {"classes": class_rows, "values": value_rows, "boxes": box_rows, "maps": map_rows}
    labels = {"classes": LABELS, "boxes": ["red", "blue"], "maps": ["ground", "sky"]}
    if kind != "nothing":
        write_evidence(folder, rows[kind](), labels=labels.get(kind, []), metrics={"iou_ground": 0.9, "iou_sky": 0.8})
    ids = {attributes["id"] for _, attributes in Tags(render(folder)).tags if attributes.get("id")}
    expected = {
        "classes": {"table-classes-validation", "figure-calibration-validation", "table-slices-validation"},
        "values": {"figure-values-validation", "figure-residuals-validation"},
        "boxes": {"table-objects-validation", "table-sizes-validation", "figure-precision-recall-validation"},
        "maps": {"table-maps-validation", "figure-by-class-validation"},
        "nothing": {"figure-loss", "figure-terms", "figure-metric-f1", "figure-time", "spec", "environment"},
    }
    assert expected[kind] <= ids
    assert ("rows" in ids) == (kind != "nothing")


def test_several_runs_are_laid_over_each_other(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"run-{seed}", seed=seed, rate=seed * 1e-5) for seed in (1, 2, 3)]
    runs = [read_run(folder) for folder in folders]
    assert differing_keys(runs) == ["seed", "train.learning_rate"]
    page = build_page(runs)
    assert [series.name for series in page.curves[0].series][:3] == ["run-1", "run-2", "run-3"]
    assert page.legend[1] == ("run-2 (seed 2, learning_rate 2e-05)", 1)
    assert page.comparison is not None
    assert page.comparison.columns[:4] == ["run", "status", "seed", "train.learning_rate"]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / parent / "mrpc") for parent in ("a", "b")]
    text = write_report(folders, tmp_path / "both.html").read_text()
    assert "a/mrpc" in text
    assert "b/mrpc" in text


# Runs that are going on, old or damaged ------------------------------------------------------------------


def test_a_run_in_progress_has_a_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "going", finished=False)
    assert read_run(folder).status == "interrupted"  # its process is gone
    assert "recipe resume" in render(folder)


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "run.json").write_text('{"format": 1, "id": "1"}')
    assert "new" in render(folder)


def test_splits_that_were_evaluated_at_the_end_are_in_the_table_of_metrics(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "tested")
    results = json.loads((folder / "results.json").read_text())
    results["best"]["metrics"] = {**results["best"]["metrics"], "test/f1": 0.8125}
    (folder / "results.json").write_text(json.dumps(results))
    table = tabulate_metrics(read_run(folder))
    assert table is not None
    assert table.rows[-1] == ["test/f1", 0.8125, None]
    assert "0.8125" in render(folder)


def test_damaged_files_are_named_and_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "damaged")
    (folder / "log.jsonl").write_bytes((folder / "log.jsonl").read_bytes() + b'{"event": "upd\n[1]\n{"event": "upda')
    (folder / "environment.json").write_text("[")
    (folder / "predictions").mkdir()
    (folder / "predictions" / "validation.parquet").write_bytes(b"PAR1 not really")
    text = " ".join(Tags(render(folder)).texts)
    assert "3 lines of log.jsonl can't be read" in text
    assert "environment.json can't be read" in text
    assert "predictions/validation.parquet can't be read" in text


@pytest.mark.parametrize(
    "record",
    [
        {"event": "update", "step": "x", "loss": None},
        {"event": "evaluate", "step": 3, "metrics": None},
        {"event": "update", "terms": [1], "loss": "1"},
        {"event": "start", "updates": None, "updates_per_epoch": 0},
        {"event": "about", "facts": 3},
        {"event": 7},
        {},
    ],
)
def test_lines_of_another_version_are_tolerated(record: dict, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "other")
    with (folder / "log.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    assert 'id="figure-loss"' in render(folder)


def test_a_log_without_times_has_no_axis_of_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "old")
    records = [{key: value for key, value in record.items() if key != "time"} for record in make_log()]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page = build_page([read_run(folder)])
    assert set(page.curves[0].axes) == {"update", "epoch"}


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a run"):
        write_report([tmp_path])
    with pytest.raises(UsageError, match="at least one"):
        write_report([])
    folder = write_run(tmp_path / "run")
    with pytest.raises(UsageError, match="is a folder"):
        write_report([folder], tmp_path)


# Size and safety -----------------------------------------------------------------------------------------


def test_a_large_run_makes_a_small_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "large", updates=8000)
    rows = class_rows(6000)
    for row in rows:
        row["input"]["text"] = (row["input"]["text"] * 99)[:2000]
    write_evidence(folder, rows, labels=LABELS)
    assert write_report([folder]).stat().st_size < 1.5e6


def test_images_fit_into_six_megabytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "images")
    random, rows = np.random.default_rng(0), class_rows(150)
    for row in rows:
        row["thumbnail"] = jpeg(random.integers(0, 256, (256, 256, 3)).astype(np.uint8))
    assert sum(len(row["thumbnail"]) for row in rows) > 5e6
    write_evidence(folder, rows, labels=LABELS)
    assert 2e6 < write_report([folder]).stat().st_size < 6e6


def test_text_from_data_stays_text(tmp_path: Path) -> None:
    labels = [f"{HOSTILE}{number}" for number in range(2)]
    folder = write_run(tmp_path / "hostile")
    log = make_log()
    log[1]["message"] = HOSTILE
    for record in log:
        if record["event"] == "evaluate":
            record["metrics"][HOSTILE] = 0.5
            record["metrics"]["../../$x$"] = 0.5
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log))
    (folder / "spec.toml").write_text(f"name = {json.dumps(HOSTILE)} # {HOSTILE}\n")
    rows = [
        {
            "input": {HOSTILE: HOSTILE},
            "source": HOSTILE,
            "reference": {"label": labels[0]},
            "prediction": {"label": labels[number % 2], "probabilities": {labels[0]: 0.5, labels[1]: 0.5}},
            "confidence": 0.5,
            "correct": number % 2 == 0,
        }
        for number in range(20)
    ]
    write_evidence(folder, rows, labels=labels)
    plain = Tags(render(write_run(tmp_path / "plain")))
    hostile = Tags(render(folder))
    running = [attributes for tag, attributes in hostile.tags if tag == "script" and "type" not in attributes]
    assert len(running) == 1
    assert not [tag for tag, _ in hostile.tags if tag == "img"]
    assert not [name for _, attributes in hostile.tags for name in attributes if name.startswith("on")]
    assert len(plain.tags) > 100


TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


@given(TEXT, TEXT)
def test_any_text_of_a_figure_is_read_back_as_it_is(name: str, title: str) -> None:
    from taskrecipe.report.chart import BarChart
    from taskrecipe.report.page import _environment

    template = _environment().from_string('{% from "figures.html.jinja" import figure %}{{ figure(chart) }}')
    text = template.render(chart=BarChart("key", title, [(name, 1.0)]))
    found = re.search(r'<script type="application/json" class="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["rows"] == [[name, 1.0]]
    assert text.count("<script") == 1
