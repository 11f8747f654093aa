"""When a run trains on sample data: the caller asks for it, or the spec wants it because something can't be had."""

from __future__ import annotations

from taskrecipe.spec.resolve import Resolved
from taskrecipe.spec.spec import Spec

ASKED = "the spec or the command line asks for it"
_SUFFIX = "-sample"


def reason_for_sample(spec: Spec) -> str | None:
    """Return why the run uses sample data; None if it uses the spec's own.

    Where data or model can't be had and the spec doesn't say `offline = "sample"`, `DataError` is raised.
    """
    from taskrecipe.data.load import missing_from_hub

    return ASKED if spec.data.sample else missing_from_hub(spec)


def run_name(resolved: Resolved) -> str:
    """Return the run's name: the spec's own or its file's, marked if it uses sample data."""
    name = resolved.spec.name or resolved.path.stem
    return f"{name}{_SUFFIX}" if resolved.spec.data.sample and not name.endswith(_SUFFIX) else name
