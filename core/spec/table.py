"""`Table`, the strict base class of every table of a spec, including those of plugins."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=LARGEST)]
"""An integer of at least 1."""

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A number from 0 to 1, without 1."""

Text = Annotated[str, Field(min_length=1, max_length=4096)]
"""A short text that is not empty."""


URL = r"^[A-Za-z][A-Za-z0-9+.-]+://"

Url = Annotated[str, Field(pattern=URL, max_length=4096)]
"""A place such as s3://bucket/runs."""


class PathMark:
    """Marks a field as a path, relative to the file that gives it. It may be a hub id with `hub`, a URL with `url`."""

    def __init__(self, *, hub: bool = False, url: bool = False) -> None:
        self.hub, self.url = hub, url


LocalPath = Annotated[str, Field(min_length=1, max_length=4096), PathMark()]
"""A file, folder or glob, relative to the spec that names it."""

PathOrUrl = Annotated[str, Field(min_length=1, max_length=4096), PathMark(url=True)]
"""A file, folder or glob, relative to the spec that names it, or at a URL such as s3://bucket/train.csv."""

HubOrPath = Annotated[str, Field(min_length=1, max_length=4096), PathMark(hub=True)]
"""A hub id, or a folder relative to the spec that names it, if that folder exists."""


class Table(BaseModel):
    """One table of a spec. It refuses unknown keys, wrong types, NaN and infinities."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        validate_default=False,
        protected_namespaces=(),
        defer_build=True,  # most tables are only a part of another, or belong to a plugin that is not used
    )


class TaskOptions(Table):
    """A recipe's own options: the keys of `[task]`."""
