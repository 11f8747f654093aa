"""Evidence that a run has written itself is drawn in full: recipes and report agree on what an answer looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrecipe import train
from taskrecipe.report.evidence import read_evidence
from taskrecipe.report.maps import tabulate_maps
from taskrecipe.report.quality import judge_split


def test_a_segmentation_shows_maps_and_the_overlaps_it_was_scored_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = Path(__file__).parents[2] / "specs" / "contrib" / "semantic_segmentation.toml"
    run = train(spec, set={"train.updates": 2, "schedule.warmup": 0}, sample=True, quiet=True)
    [evidence], problems = read_evidence(run.folder / "predictions")
    assert (evidence.kind, problems) == ("maps", [])
    table = tabulate_maps(evidence)
    assert table is not None
    scored = {name.removeprefix("iou_"): value for name, value in evidence.metrics.items() if name.startswith("iou_")}
    assert {row[0]: row[1] for row in table.rows if row[0] in scored} == pytest.approx(scored, abs=0.02)
    quality = judge_split(evidence, run.name, 1.0, [10**7])
    assert all(picture.layer for picture in quality.rows[0].pictures)
    assert (run.folder / "report.html").exists()
