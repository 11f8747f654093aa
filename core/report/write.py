"""Writing a report: from the folders of runs to one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.errors import UsageError
from taskrecipe.run.folder_names import REPORT
from taskrecipe.sweeps.folder import SWEEP
from taskrecipe.system import atomic_files
from taskrecipe.system.optional_packages import require_package

if TYPE_CHECKING:
    from taskrecipe.report.run_files import RunFiles


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write a report about one run or several, and return its path.

    Without `out`, the report of one run goes into its folder, that of several to report.html here. The folder of a
    sweep gets the page of the sweep.
    """
    from taskrecipe.report.page import build_page, render_page

    if len(folders) == 1 and out is None and (Path(folders[0]) / SWEEP).is_file():
        from taskrecipe.report.sweep_page import write_sweep_page
        from taskrecipe.sweeps.outcome import read_outcome

        outcome = read_outcome(folders[0])
        return write_sweep_page(outcome.folder, outcome.facts)
    runs = _read_runs(folders)
    path = Path(out) if out is not None else Path(runs[0].folder if len(runs) == 1 else ".") / REPORT
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file for the report, such as {path / REPORT}")
    page = render_page(build_page(runs)).encode(errors="backslashreplace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.replace(path, page)
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error
    return path


def write_pictures(folders: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Write the curves and tables of one run or several as PNG files into the folder `out`, and return their paths."""
    require_package("matplotlib", install="taskrecipe[png]", wanted_by="`recipe report --png`")
    from taskrecipe.report.page import build_page
    from taskrecipe.report.png import draw_pictures

    page, folder = build_page(_read_runs(folders)), Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return draw_pictures(page, folder)
    except OSError as error:
        raise UsageError(f"can't write into {folder}: {error.strerror or error}") from error


def _read_runs(folders: Sequence[str | Path]) -> list[RunFiles]:
    from taskrecipe.report.page import rename_runs
    from taskrecipe.report.run_files import read_run

    if not folders:
        raise UsageError("name at least one run's folder")
    return rename_runs([read_run(Path(folder)) for folder in dict.fromkeys(map(str, folders))])
