"""`recipe fetch`: copy a run from its mirror to this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from taskrecipe.remote.fetch import fetch_run
from taskrecipe.system.terminal import printable


def fetch(url: str, out: Path | None, *, as_json: bool) -> None:
    """Fetch a run and print its folder."""
    folder, warnings = fetch_run(url, out)
    for message in warnings:
        print(printable(f"warning: {message}"), file=sys.stderr)
    print(json.dumps({"folder": str(folder), "warnings": warnings}) if as_json else printable(str(folder)))
