"""`recipe report --png`: pictures for a paper, or a message that says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from tests.support.commands import Zygote
from tests.support.reported_runs import LABELS, class_rows, write_evidence, write_run

from taskrecipe import UsageError
from taskrecipe.report.write import write_pictures


def test_curves_and_tables_become_pictures(zygote: Zygote, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "$tickets_1$")
    write_evidence(folder, class_rows(), labels=[*LABELS, "$"])
    done = zygote.run("report", str(folder), "--png", "pictures", cwd=tmp_path)
    assert done.code == 0, done.stderr
    written = [tmp_path / line for line in done.stdout.splitlines()]
    assert {path.name for path in written} == {path.name for path in (tmp_path / "pictures").iterdir()}
    names = {path.stem for path in written}
    assert {"loss", "metric-f1", "learning_rate", "time", "confusion-validation", "table-classes-validation"} <= names
    for path in written:
        with Image.open(path) as image:
            image.verify()
            assert image.width > 400
    assert not (folder / "report.html").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskrecipe.system.optional_packages.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package 'matplotlib'.*pip install 'taskrecipe\[png\]'"):
        write_pictures([write_run(tmp_path / "run")], tmp_path / "pictures")
