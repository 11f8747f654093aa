"""Pictures of rows: boxes lie where they lie on the whole image."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image
from tests.support.reported_runs import box_rows, jpeg, write_evidence, write_run

from taskrecipe.report.evidence import read_evidence
from taskrecipe.report.pictures import find_size
from taskrecipe.use.evidence import _shrink


def test_a_thumbnail_names_the_size_of_the_whole_image(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    rows = box_rows(2)
    whole = io.BytesIO()
    Image.new("RGB", (800, 600)).save(whole, "PNG")
    thumbnail = _shrink({"bytes": whole.getvalue(), "path": None})
    assert thumbnail is not None
    with Image.open(io.BytesIO(thumbnail)) as small:
        assert small.size == (256, 192)
    rows[0]["thumbnail"], rows[1]["thumbnail"] = thumbnail, jpeg(np.zeros((30, 40, 3), dtype=np.uint8))
    write_evidence(folder, rows, labels=["red", "blue"])
    [evidence], _ = read_evidence(folder / "predictions")
    assert find_size(evidence, 0, thumbnail) == (800.0, 600.0)
    assert find_size(evidence, 1, rows[1]["thumbnail"]) == (40.0, 30.0)  # not made by a run: its own size
    assert find_size(evidence, 0, b"no jpeg") == (256.0, 256.0)
