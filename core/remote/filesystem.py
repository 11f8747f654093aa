"""Opening a URL by fsspec, with one sentence for whatever is in the way: a package, permission, the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import RecipeError, UsageError
from taskrecipe.remote.urls import find_url_problem, read_protocol
from taskrecipe.system.secrets import redact

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

LONGEST_REASON = 300


def require_filesystem(url: str, wanted_by: str) -> None:
    """Raise `UsageError` if a URL has no known protocol, or if its package is not installed. Nothing is opened."""
    from fsspec.registry import known_implementations

    if problem := find_url_problem(url):
        raise UsageError(f"{wanted_by}: {redact(url)!r} {problem[0]}")
    protocol = read_protocol(url)
    package = known_implementations.get(protocol, {}).get("class", "fsspec").partition(".")[0]
    if find_spec(package) is None:
        raise UsageError(
            f"{wanted_by}: {protocol}:// needs the package {package!r}, which is not installed: pip install {package}"
        )


def open_filesystem(url: str, wanted_by: str) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem of a URL and the path in it. What it knew of files from before is forgotten."""
    require_filesystem(url, wanted_by)
    from fsspec.core import url_to_fs

    with explain_remote_errors(url, wanted_by):
        filesystem, path = url_to_fs(url)
        filesystem.invalidate_cache()
    return filesystem, path


@contextmanager
def explain_remote_errors(url: str, wanted_by: str, error: type[RecipeError] = UsageError) -> Iterator[None]:
    """Turn what a filesystem raises into an `error` that names the key, the URL and what can be done."""
    try:
        yield
    except RecipeError:
        raise
    except Exception as cause:
        raise error(redact(f"{wanted_by}: {url!r} {describe_failure(cause)}")) from cause


def describe_failure(error: BaseException) -> str:
    """Return what went wrong at a remote place, and what can be done about it."""
    text = " ".join(str(error).split())[:LONGEST_REASON]
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    chain = " ".join(type(one).__name__ for one in _causes(error))
    if isinstance(error, (ConnectionError, TimeoutError)) or "Connect" in chain or "timed out" in text.lower():
        return f"can't be reached; check the network and the address ({reason})"
    if isinstance(error, FileNotFoundError):
        return f"is not there; check its spelling, and that you may read it ({reason})"
    if isinstance(error, PermissionError) or "Credential" in chain or "Forbidden" in text:
        return f"can't be opened with your credentials; log in with the tools of that service ({reason})"
    if isinstance(error, ImportError):
        return f"can't be opened: {text}"
    return f"can't be used ({reason})"


def _causes(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
