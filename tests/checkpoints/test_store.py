from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpointing import RUN_ID, contents, names, store, told_step

from taskrecipe.checkpoints import draft
from taskrecipe.checkpoints.store import Checkpoint, Checkpoints
from taskrecipe.errors import UsageError
from taskrecipe.system import atomic_files as durable


def _no_damage(message: str) -> None:
    raise AssertionError(message)


def test_a_commit_can_be_read_back(tmp_path: Path):
    committed = store(tmp_path).commit(3, contents(3), best=3)
    assert committed.path == tmp_path / "step-3"
    assert committed.bytes == sum(len(content) for content in contents(3).values())
    assert told_step(committed) == 3
    assert committed == store(tmp_path).newest(_no_damage)


def test_it_can_be_begun_while_the_content_goes_on_changing(tmp_path: Path):
    torch = pytest.importorskip("torch")
    weights, checkpoints = torch.zeros(1000), store(tmp_path)
    future = checkpoints.begin(1, {"model.safetensors": {"weights": weights}}, best=None)
    weights.fill_(7.0)
    assert future.result().tensors("model.safetensors")["weights"].eq(0.0).all()


def test_a_checksum_pauses_only_while_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draft, "PAUSE", 600.0)
    monkeypatch.setattr(draft, "CHUNK", 1000)
    checkpoints = store(tmp_path)
    future = checkpoints.begin(1, {"large": os.urandom(2500)}, best=None)
    assert not futures.wait([future], timeout=0.5).done
    checkpoints.wait()
    future.result().verify()
    checkpoints.begin(2, {"large": os.urandom(2500)}, best=None)
    checkpoints.drain()
    checkpoints.at("last").verify()


@pytest.mark.parametrize("name", ["step-12", "step-00000012", "best", "last"])
def test_it_is_found_by_each_of_its_names(tmp_path: Path, name: str):
    checkpoints = store(tmp_path)
    checkpoints.commit(12, contents(12), best=12)
    assert checkpoints.at(name).step == 12


@pytest.mark.parametrize("name", ["best", "step-4", "../elsewhere", "", "latest"])
def test_a_name_that_means_nothing_is_an_error_that_lists_what_there_is(tmp_path: Path, name: str):
    checkpoints = store(tmp_path / "checkpoints")
    checkpoints.commit(3, contents(3), best=None)
    with pytest.raises(UsageError, match="there are: step-3"):
        checkpoints.at(name)


def test_pointers_hold_when_the_folder_is_moved(tmp_path: Path):
    checkpoints = store(tmp_path / "here")
    checkpoints.commit(1, contents(1), best=1)
    checkpoints.commit(2, contents(2), best=1)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = store(tmp_path / "there")
    assert (told_step(moved.at("best")), told_step(moved.at("last"))) == (1, 2)


def test_a_best_step_without_a_checkpoint_has_no_pointer(tmp_path: Path):
    checkpoints = store(tmp_path)
    checkpoints.commit(1, contents(1), best=1)
    checkpoints.commit(2, contents(2), best=17)
    with pytest.raises(UsageError, match="'best'"):
        checkpoints.at("best")


def test_a_step_that_is_committed_again_is_replaced(tmp_path: Path):
    store(tmp_path).commit(5, contents(1), best=5)
    again = store(tmp_path).commit(5, contents(2), best=5)
    assert told_step(again) == told_step(store(tmp_path).at("best")) == 2
    assert names(tmp_path) == {"step-5", "best", "last"}


def test_a_kill_between_the_renames_of_a_replacement_loses_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store(tmp_path).commit(5, contents(1), best=None)
    real, renames = Path.rename, []

    def second_fails(path: Path, target: Path) -> Path:
        renames.append(target)
        if len(renames) == 2:
            raise SystemExit
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", second_fails)
        with pytest.raises(SystemExit):
            store(tmp_path).commit(5, contents(2), best=None)
    assert "step-5" not in names(tmp_path)
    newest = store(tmp_path).newest(_no_damage)
    assert newest is not None
    assert (newest.step, told_step(newest)) == (5, 2)
    store(tmp_path).recover()
    assert told_step(store(tmp_path).at("step-5")) == 2


def test_leftovers_of_a_killed_run_are_cleared_but_only_its_own(tmp_path: Path):
    store(tmp_path).commit(1, contents(1), best=None)
    own = [f".tmp-{RUN_ID}-2", f".trash-{RUN_ID}-step-0-17"]
    foreign = [".tmp-other-2", ".trash-other-step-0-17", ".tmp", "tmp-notes"]
    for name in own + foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    newest = store(tmp_path).newest(_no_damage)
    assert newest is not None
    assert newest.step == 1
    assert names(tmp_path) == {"step-1", "last", *own, *foreign}
    store(tmp_path).recover()
    assert names(tmp_path) == {"step-1", "last", *foreign}


def test_reading_changes_nothing(tmp_path: Path):
    checkpoints = store(tmp_path)
    checkpoints.commit(1, contents(1), best=None)
    (tmp_path / f".tmp-{RUN_ID}-2").mkdir()  # of a run that is at work now
    store(tmp_path).at("last")
    assert f".tmp-{RUN_ID}-2" in names(tmp_path)


# What is kept -------------------------------------------------------------------------------------------


def _plant_foreign_things(folder: Path, outside: Path) -> None:
    """Put things that aren't the run's beside its checkpoints."""
    outside.mkdir()
    (outside / "precious.txt").write_text("precious")
    folder.mkdir()
    (folder / "step-777").symlink_to(outside, target_is_directory=True)
    (folder / "step-888").mkdir()
    (folder / "step-888" / "MANIFEST.json").write_text(f'{{"run_id": "{RUN_ID}"}}')
    (folder / "step-01").mkdir()
    (folder / "notes.txt").write_text("notes")
    store(folder, run_id="other").commit(999, contents(1), best=None)
    (folder / "last").unlink()


def _everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@settings(max_examples=40, deadline=None)
@given(
    keep=st.integers(1, 4),
    scores=st.lists(st.sampled_from([0.1, 0.2, 0.3, float("nan")]), min_size=1, max_size=9),
    lower_is_better=st.booleans(),
    resumes=st.sets(st.integers(0, 9)),
    gap=st.integers(1, 3),
)
def test_best_and_last_stay_and_nothing_foreign_is_touched(
    tmp_path_factory: pytest.TempPathFactory,
    keep: int,
    scores: list[float],
    lower_is_better: bool,
    resumes: set[int],
    gap: int,
):
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    _plant_foreign_things(folder, folder.parent / "outside")
    foreign = _everything(folder.parent)
    best: tuple[float, int] | None = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        checkpoints = store(folder, keep)
        for index, score in enumerate(scores):
            if index in resumes:
                checkpoints = store(folder, keep)
            step, merit = (index + 1) * gap, -score if lower_is_better else score
            if not math.isnan(merit) and (best is None or merit > best[0]):
                best = merit, step
            checkpoints.commit(step, contents(step), best=best[1] if best else None)
            newest = {number * gap for number in range(max(1, index + 2 - keep), index + 2)}
            kept = newest | ({best[1]} if best else set())
            own = _everything(folder.parent).keys() - foreign.keys()
            assert {Path(path).name for path in own if Path(path).is_dir()} == {f"step-{step}" for step in kept}
            assert told_step(checkpoints.at("last")) == step
            assert best is None or told_step(checkpoints.at("best")) == best[1]
            assert _everything(folder.parent).items() >= foreign.items()


@pytest.mark.parametrize("kind", ["folder", "link", "file", "damaged"])
def test_something_foreign_with_the_name_of_a_new_checkpoint_is_put_aside(tmp_path: Path, kind: str):
    place, outside = tmp_path / "checkpoints" / "step-2", tmp_path / "outside"
    outside.mkdir()
    place.parent.mkdir()
    if kind == "link":
        place.symlink_to(outside)
    elif kind == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "MANIFEST.json").write_text("damaged" if kind == "damaged" else "{}")
    assert told_step(store(place.parent).commit(2, contents(2), best=None)) == 2
    assert names(place.parent) == {"step-2", "step-2.aside-1", "last"}
    assert outside.is_dir()


def test_a_checkpoint_with_something_foreign_in_it_is_kept(tmp_path: Path):
    checkpoints = store(tmp_path, keep=1)
    checkpoints.commit(1, contents(1), best=None)
    (tmp_path / "step-1" / "notes.txt").write_text("mine")
    for step in (2, 3):
        checkpoints.commit(step, contents(step), best=None)
    assert names(tmp_path) == {"step-1", "step-3", "last"}


def test_the_newest_of_another_run_is_not_resumed_from(tmp_path: Path):
    store(tmp_path, run_id="other").commit(9, contents(9), best=None)
    store(tmp_path).commit(1, contents(1), best=None)
    told: list[str] = []
    newest = store(tmp_path).newest(told.append)
    assert newest is not None
    assert newest.step == 1
    assert len(told) == 1
    assert "another run" in told[0]


# In which order -----------------------------------------------------------------------------------------


def test_nothing_is_deleted_before_the_new_one_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints, deleted = store(tmp_path, keep=1), []
    checkpoints.commit(1, contents(1), best=None)
    real = durable.remove

    def remove(path: Path) -> None:
        if path.is_dir():
            deleted.append(path.name)
            assert told_step(store(tmp_path).at("last")) == 2
        real(path)

    monkeypatch.setattr(durable, "remove", remove)
    checkpoints.commit(2, contents(2), best=None)
    assert [name.startswith(f".trash-{RUN_ID}-step-1") for name in deleted] == [True]


def test_all_of_it_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []
    real_sync, real_rename, real_replace = os.fsync, Path.rename, Path.replace

    def sync(file: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{file}').readlink().name}")
        real_sync(file)

    def rename(path: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return real_rename(path, target)

    def replace(path: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(Path, "replace", replace)
    store(tmp_path / "checkpoints").commit(1, contents(1), best=1)
    folder = f".tmp-{RUN_ID}-1"
    files = {f"sync {name}" for name in contents(1)}
    assert set(done[: len(files)]) == files
    assert done[len(files) :] == [
        *("sync MANIFEST.json", f"sync {folder}", "name step-1", "sync checkpoints"),
        *("sync .last.tmp", "name last", "sync checkpoints"),
        *("sync .best.tmp", "name best", "sync checkpoints"),
    ]


def test_the_commit_that_was_begun_is_complete_when_the_interpreter_ends(tmp_path: Path):
    script = (
        "import sys; from pathlib import Path; from tests.support.checkpointing import contents, store;"
        "store(Path(sys.argv[1])).begin(1, contents(1, size=10_000_000), best=1)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)
    assert told_step(store(tmp_path).at("best")) == 1
    assert names(tmp_path) == {"step-1", "best", "last"}


def test_a_commit_does_not_read_the_manifests_of_all_kept_checkpoints(tmp_path, monkeypatch) -> None:
    commits = Checkpoints(tmp_path, keep=50, run_id="run")
    for step in range(1, 21):
        commits.commit(step, {"a.json": b"{}"}, best=None)
    read, original = [], Checkpoint.read.__func__
    monkeypatch.setattr(Checkpoint, "read", classmethod(lambda cls, path: read.append(path) or original(cls, path)))
    commits.commit(21, {"a.json": b"{}"}, best=None)
    assert len(read) <= 3
    assert len(list(tmp_path.glob("step-*"))) == 21
