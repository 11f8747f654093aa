"""Copies of remote files in the cache of this machine, each downloaded once for every version of it.

    downloads/<hash of the URL>/<hash of the version>/source.json    the URL
                                                     /files/…        the files, under their own names

A version is what the remote place says about its files: their sizes with checksums or times. A copy is filled under
another name and renamed when it is whole. If it was interrupted, files that are there already are not fetched again,
and a new version takes over the files that have not changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from taskrecipe.data.cache_folder import find_cache_folder
from taskrecipe.data.file_digest import hash_file
from taskrecipe.errors import DataError
from taskrecipe.remote.filesystem import explain_remote_errors, open_filesystem
from taskrecipe.remote.urls import join_url, read_name
from taskrecipe.system import atomic_files
from taskrecipe.system.secrets import redact

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

FOLDER, FILES, SOURCE = "downloads", "files", "source.json"
PARTIAL, PART = ".partial", ".part"
"""Endings of a copy, and of a file, that is not whole yet."""

_THREADS = 16

_CHECKSUMS = (
    *("ETag", "etag", "md5Hash", "md5", "content_md5", "Content-MD5", "Digest", "crc32c", "sha256"),
    *("generation", "VersionId", "versionId", "blob_id", "xet_hash"),
)
_TIMES = ("LastModified", "last_modified", "Last-Modified", "updated", "mtime", "ino")
_LAST_RESORT = ("created",)
"""What filesystems call the things that tell one version of a file from another."""


def fetch_copies(url: str, wanted_by: str) -> list[Path]:
    """Return the local copies of what a URL stands for: a file, a folder, or the matches of a glob in order."""
    filesystem, path = open_filesystem(url, wanted_by)
    with explain_remote_errors(url, wanted_by, DataError):
        remote = _list_remote(filesystem, path)
        if not remote.files:
            raise DataError(f"{wanted_by}: there are no files at {redact(url)!r}")
        home = find_cache_folder() / FOLDER / _hash(url)
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock"), atomic_files.explain_full_disk(home, remote.size):
            folder = _find_copy(home, remote) or _download(filesystem, remote, home, url)
    return [folder / FILES / name for name in remote.found]


def find_url(path: Path) -> str | None:
    """Return the URL that a file was downloaded from; None if it was not downloaded."""
    if FOLDER not in path.parts:  # nearly always
        return None
    downloads = find_cache_folder() / FOLDER
    parts = path.relative_to(downloads).parts if path.is_relative_to(downloads) else ()
    if len(parts) < 4:
        return None
    home, version, _, *names = parts
    folder = _read_folder_url(downloads / home / version / SOURCE)
    return join_url(folder, *names) if folder else None


@lru_cache(maxsize=256)
def _read_folder_url(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_bytes())["folder"])
    except (OSError, ValueError, LookupError):
        return None


@contextmanager
def name_urls() -> Iterator[None]:
    """Let a `DataError` of the block name the URLs of downloaded files, not those of their copies."""
    try:
        yield
    except DataError as error:
        root = str(find_cache_folder() / FOLDER)
        if root not in str(error):
            raise
        places = (error.message, error.place)
        message, place = (None if text is None else _replace_paths(text, root) for text in places)
        raise DataError(
            message or "", split=error.split, row=error.row, column=error.column, place=place
        ) from error.__cause__


def _replace_paths(text: str, root: str) -> str:
    def name(found: re.Match[str]) -> str:
        return find_url(Path(found[0])) or found[0]

    return re.sub(re.escape(root) + r"[^'\"\n]*", name, text)


# What is there -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Remote:
    """The files that a URL stands for."""

    root: str
    """The remote folder that names are relative to."""
    files: Mapping[str, Mapping[str, Any]]
    """What the filesystem says about each file, by its name."""
    found: list[str]
    """The files and folders that are meant."""

    @property
    def size(self) -> int:
        return sum(about.get("size") or 0 for about in self.files.values())

    def versions(self) -> dict[str, str] | None:
        """Return the version of each file; None if the remote place does not say it of all."""
        found = {name: _read_version(about) for name, about in self.files.items()}
        return {name: version for name, version in found.items() if version} if all(found.values()) else None


def _read_version(about: Mapping[str, Any]) -> str | None:
    kinds = (
        [(key, _as_number(about[key])) for key in keys if about.get(key)] for keys in (_CHECKSUMS, _TIMES, _LAST_RESORT)
    )
    known = next(filter(None, kinds), None)
    return _hash(json.dumps([about.get("size"), known], default=str)) if known else None


def _as_number(value: Any) -> Any:
    """Return a time as a number: some filesystems give it in one call so and in another so."""
    return value.timestamp() if isinstance(value, datetime) else value


def _list_remote(filesystem: AbstractFileSystem, path: str) -> _Remote:
    try:
        about = filesystem.info(path)
    except FileNotFoundError:
        if not has_magic(path):
            raise
        return _list_matches(filesystem, path)
    root, _, name = path.rstrip("/").rpartition("/")
    if about["type"] != "directory":
        name = read_name(name) or "file"
        return _Remote(root, {name: {**about, "path": path}}, [name])
    return _Remote(root, _list_folder(filesystem, path, root), [name])


def _list_matches(filesystem: AbstractFileSystem, pattern: str) -> _Remote:
    root = _fixed_folder(pattern)
    files: dict[str, Mapping[str, Any]] = {}
    matches = dict(sorted(filesystem.glob(pattern, detail=True).items()))
    for path, about in matches.items():
        if about["type"] == "directory":
            files |= _list_folder(filesystem, path, root)
        else:
            files[_relative(path, root)] = {**about, "path": path}
    return _Remote(root, files, [_relative(path, root) for path in matches])


def _list_folder(filesystem: AbstractFileSystem, folder: str, root: str) -> dict[str, Mapping[str, Any]]:
    found = filesystem.find(folder, detail=True)
    return {_relative(path, root): {**about, "path": path} for path, about in sorted(found.items())}


def _relative(path: str, root: str) -> str:
    name = path.removeprefix(root).lstrip("/")
    if ".." in name.split("/"):
        raise DataError(f"{path!r} leads out of its folder")
    return name


# Copying -------------------------------------------------------------------------------------------


def _find_copy(home: Path, remote: _Remote) -> Path | None:
    versions = remote.versions()
    folder = home / _name_version(versions) if versions else None
    return folder if folder and (folder / SOURCE).is_file() else None


def _download(filesystem: AbstractFileSystem, remote: _Remote, home: Path, url: str) -> Path:
    versions = remote.versions()
    unfinished = home / f"{_name_version(versions) if versions else 'unknown'}{PARTIAL}"
    if not versions:
        shutil.rmtree(unfinished, ignore_errors=True)  # nobody knows what it was
    (unfinished / FILES).mkdir(parents=True, exist_ok=True)
    _reuse_files(home, unfinished, versions or {})
    _fetch_missing(filesystem, remote, unfinished / FILES)
    if versions and _list_again(filesystem, remote).versions() != versions:
        shutil.rmtree(unfinished)
        raise DataError(f"{redact(url)!r} was changed while it was downloaded; start again when it is complete")
    versions = versions or {name: hash_file(unfinished / FILES / name) for name in remote.files}
    about = {"folder": redact(_folder_url(url)), "versions": versions}
    atomic_files.replace(unfinished / SOURCE, json.dumps(about).encode())
    atomic_files.sync_tree(unfinished)
    folder = home / _name_version(versions)
    atomic_files.rename_unless_there(unfinished, folder)
    for old in home.glob(f"*{PARTIAL}"):
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _folder_url(url: str) -> str:
    """Return the URL of the folder that the names of the files are relative to."""
    protocol, _, path = url.partition("://")
    return f"{protocol}://{_fixed_folder(path)}"


def _fixed_folder(path: str) -> str:
    """Return the folder of a file, or of all matches of a glob."""
    return re.split(r"[*?\[]", path.rstrip("/"))[0].rpartition("/")[0]


def _list_again(filesystem: AbstractFileSystem, remote: _Remote) -> _Remote:
    filesystem.invalidate_cache()
    if len(remote.files) == 1:
        [(name, about)] = remote.files.items()
        return _Remote(remote.root, {name: filesystem.info(about["path"])}, remote.found)
    folder = os.path.commonpath([about["path"] for about in remote.files.values()])
    now = filesystem.find(folder, detail=True)
    files = {name: now.get(about["path"], {}) for name, about in remote.files.items()}
    return _Remote(remote.root, files, remote.found)


def _reuse_files(home: Path, unfinished: Path, versions: Mapping[str, str]) -> None:
    """Link the files that an earlier version of the copy has already."""
    for source in home.glob(f"*/{SOURCE}"):
        try:
            known = json.loads(source.read_bytes())["versions"]
        except (OSError, ValueError, LookupError):
            continue
        for name, version in versions.items():
            target = unfinished / FILES / name
            if known.get(name) == version and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(source.parent / FILES / name, target)


def _fetch_missing(filesystem: AbstractFileSystem, remote: _Remote, folder: Path) -> None:
    missing = {name: about for name, about in remote.files.items() if not (folder / name).exists()}
    total = sum(about.get("size") or 0 for about in missing.values())
    with _show_progress(total) as callback, ThreadPoolExecutor(_THREADS) as threads:
        fetch = partial(_fetch_file, filesystem, callback=callback)
        tasks = [threads.submit(fetch, about, folder / name) for name, about in missing.items()]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)  # those that have begun still end
            raise


def _fetch_file(filesystem: AbstractFileSystem, about: Mapping[str, Any], target: Path, *, callback: Any) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name[:200]}{PART}")
    filesystem.get_file(about["path"], str(part), callback=callback)
    size, came = about.get("size"), part.stat().st_size
    if size is not None and came != size:
        raise DataError(f"{about['path']!r} has {size:,} bytes, but {came:,} came; try again")
    part.replace(target)


@contextmanager
def _show_progress(total: int) -> Iterator[Any]:
    """Yield a callback of fsspec that moves one bar for all files, on a terminal."""
    from datasets.utils import tqdm
    from fsspec.callbacks import Callback

    with tqdm(total=total, unit="B", unit_scale=True, desc="downloading", leave=False, disable=None) as bar:

        class Bar(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                bar.update(inc)

        yield Bar()


def _name_version(versions: Mapping[str, str]) -> str:
    return _hash(json.dumps(versions, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
