"""`recipe export`: write a run's model in another form, or upload it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.run.handle import Run
from taskrecipe.system.terminal import printable

if TYPE_CHECKING:
    from taskrecipe.export.export import Exported, Form


def export(run: Path, to: Form, folder: Path | None, *, as_json: bool, **options: Any) -> None:
    """Export the model of a run, and print where it is and how far its outputs are from the run's."""
    exported = Run(run).export(to, folder, **options)
    if as_json:
        print(json.dumps(exported.to_dict(), indent=2))
        return
    print(_describe_check(exported), file=sys.stderr)
    if exported.private is not None:
        print(f"uploaded to a {'private' if exported.private else 'public'} repository", file=sys.stderr)
    for place in (exported.folder, exported.url):
        if place is not None:
            print(printable(place))


def _describe_check(exported: Exported) -> str:
    return (
        f"loaded again in a fresh process: the largest difference of outputs on {exported.rows} rows is "
        f"{exported.difference:.3g} (tolerance {exported.tolerance:g})"
    )
