"""`recipe export`: a run's model in another form, checked by a round trip before it is put in place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, get_args

from taskrecipe.errors import UsageError
from taskrecipe.run.export import RECIPE
from taskrecipe.run.folder_names import MARKER, MODEL
from taskrecipe.run.host import preserve_host
from taskrecipe.system import atomic_files

if TYPE_CHECKING:
    from taskrecipe.export.round_trip import Check
    from taskrecipe.run.handle import Run

Form = Literal["hf", "onnx", "hub"]

TOLERANCE = 1e-4
"""How far outputs may be from the run's own, relative to an output's largest value if that is above 1."""


@dataclass(frozen=True)
class Exported:
    """What an export has written, and how far its outputs are from those of the run."""

    to: Form
    folder: str | None
    """Where it is on this machine; None if it is on the hub only."""
    url: str | None
    """Where it is on the hub; None if it was not uploaded."""
    commit: str | None
    private: bool | None
    """Whether the repository on the hub is private."""
    rows: int
    """Rows that were compared."""
    difference: float
    tolerance: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def export_run(
    run: Run,
    to: Form,
    folder: str | Path | None = None,
    *,
    tolerance: float = TOLERANCE,
    force: bool = False,
    repo: str | None = None,
    private: bool = True,
) -> Exported:
    """Export the model of a run. What can't be loaded again with the same outputs is not written.

    Without `folder`, `hf` and `onnx` are written into the run's folder, and what is uploaded is not kept. `force`
    replaces an earlier export. For the hub, `repo` is OWNER/NAME; a new repository is private unless told otherwise.
    """
    _require_possible(run, to, repo)
    with preserve_host():
        if to != "hub":
            target = Path(folder) if folder is not None else run.folder / to
            with _new_folder(target, force) as made:
                check = _write(run, to, made, tolerance)
            return Exported(to, str(target), None, None, None, check.rows, check.difference, tolerance)
        return _upload(run, folder, tolerance, force, str(repo), private)


def _require_possible(run: Run, to: Form, repo: str | None) -> None:
    if to not in get_args(Form):
        raise UsageError(f"a run can be exported to {', '.join(get_args(Form))}; not to {to!r}")
    if (repo is None) == (to == "hub"):
        raise UsageError(
            "--to hub needs --repo OWNER/NAME" if to == "hub" else f"--repo is for --to hub, not for --to {to}"
        )
    if not (run.folder / MODEL / RECIPE).is_file():
        raise UsageError(f"{run.folder} has no model yet: it is written when training ends (`recipe resume` continues)")
    if to == "onnx":
        from taskrecipe.system.optional_packages import require_package

        for package in ("onnx", "onnxscript", "onnxruntime"):
            require_package(package, install="taskrecipe[onnx]", wanted_by="recipe export --to onnx")


def _write(run: Run, to: Form, folder: Path, tolerance: float, place: str | None = None) -> Check:
    """Write one form into an empty folder, and require that it is still the same model."""
    if to == "onnx":
        from taskrecipe.export.onnx_folder import write_onnx_folder

        check = write_onnx_folder(run, folder)
    else:
        from taskrecipe.export.hf_folder import write_hf_folder

        check = write_hf_folder(run, folder, place)
    check.require(tolerance)
    return check


def _upload(run: Run, kept: str | Path | None, tolerance: float, force: bool, repo: str, private: bool) -> Exported:
    from taskrecipe.export.hub_upload import open_repository, upload_folder

    open_repository(repo, private)  # first: a token that is refused is known before anything is computed
    with TemporaryDirectory(prefix="taskrecipe-export-") as temporary:
        folder = Path(kept) if kept is not None else Path(temporary) / MODEL
        with _new_folder(folder, force) as made:
            check = _write(run, "hub", made, tolerance, repo)
        uploaded = upload_folder(folder, repo, f"Add {run.name}, trained with taskrecipe")
    where, on_hub = None if kept is None else str(folder), (uploaded.url, uploaded.commit, uploaded.private)
    return Exported("hub", where, *on_hub, check.rows, check.difference, tolerance)


@contextmanager
def _new_folder(path: Path, force: bool) -> Iterator[Path]:
    """Yield a folder next to `path` to fill. It becomes `path` at the end of the block; an error leaves no trace."""
    _require_free(path, force)
    former = path.with_name(f".{path.name}.former")
    with atomic_files.explain_full_disk(path), atomic_files.create_folder(path) as made:
        yield made
        atomic_files.sync_tree(made)
        if path.exists():
            atomic_files.remove(former)
            path.rename(former)
    atomic_files.sync(path.parent)
    atomic_files.remove(former)


def _require_free(path: Path, force: bool) -> None:
    """Raise unless a folder can be written at `path`: it is absent or empty, or an export that may be replaced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
        is_writable = os.access(path.parent, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be written: {getattr(error, 'strerror', None) or error}") from error
    if not is_writable:
        raise UsageError(f"{path} can't be written: there is no permission to write into {path.parent}")
    is_model_of_run = path.name == MODEL and (path.parent / MARKER).is_file()
    is_export = RECIPE in names and not is_model_of_run
    if names and not (force and is_export):
        earlier = ", or replace the export there with --force" if is_export else ""
        raise UsageError(f"{path} is not empty: name a new folder{earlier}")
