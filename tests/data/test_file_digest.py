"""A file is read once, and again as soon as it may have changed."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from taskrecipe.data import file_digest
from taskrecipe.data.file_digest import DATABASE, digest_files

OLD = 10**18
"""A modification time in the past, in nanoseconds."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TASKRECIPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read."""
    names: list[str] = []
    real = file_digest.hash_file

    def hash_and_note(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(file_digest, "hash_file", hash_and_note)
    return names


def _files(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"{number}-\udcff.bin" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 100_000)
        os.utime(path, ns=(OLD, OLD))
    return paths


@pytest.mark.usefixtures("cache")
def test_it_is_the_sha256_of_the_whole_file(tmp_path: Path) -> None:
    paths = _files(tmp_path)
    expected = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert digest_files(paths) == expected
    assert digest_files([paths[2], paths[0], paths[2]]) == [expected[2], expected[0], expected[2]]
    assert digest_files([]) == []


@pytest.mark.usefixtures("cache")
def test_a_second_run_reads_nothing(tmp_path: Path, reads: list[str]) -> None:
    paths = _files(tmp_path)
    first = digest_files(paths)
    assert len(reads) == 3
    assert digest_files(paths) == first
    assert len(reads) == 3


@pytest.mark.usefixtures("cache")
def test_a_file_that_may_have_changed_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    paths = _files(tmp_path)
    digest_files(paths)
    reads.clear()
    os.utime(paths[0], ns=(OLD, OLD + 1))  # another time
    paths[1].write_bytes(b"short")  # another size
    os.utime(paths[1], ns=(OLD, OLD))
    other = tmp_path / "other"  # another file in its place
    other.write_bytes(b"x" * 100_000)
    os.utime(other, ns=(OLD, OLD))
    other.replace(paths[2])
    expected = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert digest_files(paths) == expected
    assert len(reads) == 3


@pytest.mark.usefixtures("cache")
def test_a_file_that_was_just_written_is_not_trusted(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a")
    digest_files([path])
    digest_files([path])
    assert reads == ["a", "a"]


def test_a_damaged_cache_costs_time_only(tmp_path: Path, cache: Path, reads: list[str]) -> None:
    paths = _files(tmp_path)
    expected = digest_files(paths)
    (cache / DATABASE).write_bytes(b"no database" * 100)
    for _ in range(3):
        assert digest_files(paths) == expected
    assert len(reads) == 9  # the first, the one that finds the damage, and the one after it
    assert digest_files(paths) == expected


@pytest.mark.usefixtures("cache")
def test_several_processes_may_use_it_at_once(tmp_path: Path) -> None:
    paths = _files(tmp_path, 20)
    expected = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    answers: list[list[str]] = []
    threads = [threading.Thread(target=lambda: answers.append(digest_files(paths))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4
