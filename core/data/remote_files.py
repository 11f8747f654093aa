"""`[data.files]` with URLs: they are downloaded once, and everything else works on the copies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import DataError
from taskrecipe.remote.urls import is_url

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Data


def fetch_remote_files(data: Data, splits: Collection[str]) -> Data:
    """Return `[data]` with local copies instead of URLs. Only the files of `splits` are fetched."""
    files = {
        split: _fetch(given, f"[data.files].{split}") if split in splits else given
        for split, given in data.files.items()
    }
    maps = {
        split: _fetch_folder(given, f"[data.maps].{split}") if split in splits else given
        for split, given in data.maps.items()
    }
    images = _fetch_folder(data.images, "[data].images") if data.images else None
    return data.model_copy(update={"files": files, "maps": maps, "images": images})


def list_urls(data: Data) -> dict[str, str]:
    """Return the URLs of `[data]`, each with the key that gives it."""
    tables: dict[str, Any] = {"files": data.files, "maps": data.maps}
    named = {f"[data.{table}].{split}": given for table, found in tables.items() for split, given in found.items()}
    named["[data].images"] = data.images or []
    pairs = [(key, url) for key, given in named.items() for url in ([given] if isinstance(given, str) else given)]
    return {url: key for key, url in pairs if is_url(url)}


def _fetch(given: str | list[str], key: str) -> str | list[str]:
    """Return a path or list of paths with copies instead of URLs. What names one place stays one path."""
    from taskrecipe.remote.downloads import fetch_copies

    if isinstance(given, str) and not is_url(given):
        return given
    paths: list[str] = []
    for one in [given] if isinstance(given, str) else given:
        paths += map(str, fetch_copies(one, key)) if is_url(one) else [one]
    return paths[0] if isinstance(given, str) and len(paths) == 1 else paths


def _fetch_folder(given: str, key: str) -> str:
    found = _fetch(given, key)
    if not isinstance(found, str):
        raise DataError(f"{key} must name one folder; {given!r} matches {len(found)}")
    return found
