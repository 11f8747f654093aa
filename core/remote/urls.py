"""What a URL in a spec or on the command line says, without opening it. It imports nothing heavy."""

from __future__ import annotations

import re
from pathlib import Path

from taskrecipe.system.suggestions import closest

USUAL_PROTOCOLS = ("s3", "gs", "az", "abfs", "hf", "https", "http", "sftp", "hdfs", "file", "memory")
"""What messages name. fsspec knows more."""

_URL = r"[A-Za-z][A-Za-z0-9+.-]+://"


def is_url(text: str | Path) -> bool:
    """Whether a text is a URL such as s3://bucket/train.csv. A path is one too that was made of such a text."""
    return re.match(_URL, restore_url(text)) is not None


def restore_url(text: str | Path) -> str:
    """Return the text that a path was made of: `Path` leaves one slash of the first ones of a URL."""
    if not isinstance(text, Path):
        return text
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)(.*)", str(text), re.DOTALL)
    if found is None:
        return str(text)
    return f"{found[1]}://{'/' if found[1] in ('file', 'local') else ''}{found[2]}"


def read_protocol(url: str) -> str:
    """Return what is before :// in a URL."""
    return url.partition("://")[0].lower()


def read_name(url: str) -> str:
    """Return the last part of a URL's path, without a query."""
    return re.split(r"[?#]", url.rstrip("/"))[0].rpartition("/")[2]


def join_url(url: str, *names: str) -> str:
    """Return the URL of a file inside the folder of a URL."""
    return (url if url.endswith("://") else url.rstrip("/") + "/") + "/".join(names)


def find_url_problem(url: str) -> tuple[str, str | None] | None:
    """Return why a URL can't be opened on any machine, and what may be meant; None if nothing speaks against it."""
    from fsspec.registry import available_protocols, registry

    if "::" in url:
        return "is a chain of several places; name one URL, without '::'", None
    protocol, known = read_protocol(url), [*available_protocols(), *registry]
    if protocol not in known:
        usual = ", ".join(f"{name}://" for name in USUAL_PROTOCOLS)
        similar = closest(protocol, known)
        meant = f"{similar}{url[len(protocol) :]}" if similar else None
        return f"has the unknown protocol {protocol!r}; usual ones are {usual}", meant
    if not url.partition("://")[2].strip("/"):
        return "names no place after '://'", None
    return None
