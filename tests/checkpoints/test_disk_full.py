"""A disk that is full costs the checkpoint that was being written, and no other."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.checkpointing import contents, names, store, told_step

from taskrecipe.errors import DiskFullError
from taskrecipe.system import atomic_files as durable


def _can_mount() -> bool:
    tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return tried.returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="no mounts without privileges here")
def test_a_small_disk_that_fills_up_at_the_first_second_and_third_save(tmp_path: Path):
    command = ["unshare", "-rm", sys.executable, "-m", "tests.support.full_disk", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split() == ["1", "2", "3"]


class LimitedDisk:
    """Stands for os.fsync; its n-th call finds no room."""

    def __init__(self, failing: int, number: int) -> None:
        self.left, self.number = failing, number

    def __call__(self, file: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_at_any_moment_leaves_the_earlier_ones_and_says_what_was_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    folder, errors = tmp_path / "checkpoints", []
    store(folder, keep=1).commit(1, contents(1), best=None)
    for failing in range(1, 100):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", LimitedDisk(failing, number))
            try:
                store(folder, keep=1).commit(2, contents(2), best=None)
                break  # it has no further call
            except DiskFullError as error:
                errors.append(str(error))
        assert [name for name in names(folder) if name.startswith(".tmp")] == []
        newest = store(folder, keep=1).newest(pytest.fail)
        assert newest is not None
        assert told_step(newest) == newest.step
    assert len(errors) == 8  # three files, the manifest, two folders, the pointer and its folder
    assert all("bytes are needed" in error and "bytes are free" in error for error in errors)
    assert all(str(folder / "step-2") in error for error in errors[:-2])
    assert told_step(store(folder).at("last")) == 2


def test_a_file_that_can_not_be_written_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = store(tmp_path)
    checkpoints.commit(1, contents(1), best=None)

    def full(path: Path, buffers: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_new", full)
        with pytest.raises(DiskFullError, match=r"step-2: 3\d\d bytes are needed, [\d,]+ bytes are free"):
            checkpoints.begin(2, contents(2), best=None)
    assert names(tmp_path) == {"step-1", "last"}
    assert told_step(checkpoints.commit(2, contents(2), best=None)) == 2


def test_what_went_wrong_meanwhile_is_raised_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = store(tmp_path)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        checkpoints.begin(1, contents(1), best=None)
        with pytest.raises(DiskFullError, match="step-1"):
            checkpoints.begin(2, contents(2), best=None)
    assert told_step(checkpoints.commit(3, contents(3), best=None)) == 3


def test_an_error_that_is_no_full_disk_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        store(tmp_path).commit(1, contents(1), best=None)
    assert names(tmp_path) == set()


def test_a_disk_that_is_too_small_is_noticed_before_the_run(tmp_path: Path):
    checkpoints = store(tmp_path / "not" / "there" / "yet")
    checkpoints.require_space(1000)
    checkpoints.require_space(int(0.9 * durable.free_bytes(tmp_path)))
    with pytest.raises(DiskFullError, match=r"no space for a checkpoint in .*yet: [\d,]+ bytes are needed"):
        checkpoints.require_space(10**18)
    assert not (tmp_path / "not").exists()
