"""`recipe watch`."""

from __future__ import annotations

from pathlib import Path

from taskrecipe.errors import RunStopped


def watch(folder: Path, *, as_json: bool = False) -> int:
    """Show a run until it ends. Return 0 if it has finished, else the code of a run that stopped."""
    from taskrecipe.run.watch import watch_run

    return 0 if watch_run(folder, as_json=as_json) == "finished" else RunStopped.exit_code
