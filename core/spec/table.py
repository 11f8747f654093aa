"""`Table`, the strict model that every table of a spec is made of, plugin tables included."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=LARGEST)]
"""A whole number of things, at least one."""

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A part of a whole, 1 excluded."""

Text = Annotated[str, Field(min_length=1, max_length=4096)]
"""A short text that is not empty."""


class PathMark:
    """Marks a field as a path, relative to the file that gives it; `hub` says that it may be a hub id instead."""

    def __init__(self, *, hub: bool = False) -> None:
        self.hub = hub


LocalPath = Annotated[str, Field(min_length=1, max_length=4096), PathMark()]
"""A file, folder or glob, relative to the spec that names it."""

HubOrPath = Annotated[str, Field(min_length=1, max_length=4096), PathMark(hub=True)]
"""A hub id; or a folder, if there is one of that name beside the spec that names it."""


class Table(BaseModel):
    """One table of a spec: unknown keys, loose types, NaN and infinities are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        validate_default=False,
        protected_namespaces=(),
    )


class TaskOptions(Table):
    """A recipe's own options: what it takes in `[task]`."""
