"""`recipe replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from taskrecipe.cli.help.layout import print_columns, print_heading, print_paragraph
from taskrecipe.cli.help.numbers import format_value
from taskrecipe.errors import NotReproducedError
from taskrecipe.system.secrets import to_json
from taskrecipe.system.terminal import printable

if TYPE_CHECKING:
    from taskrecipe.sweeps.replay import Replay

WORDS = {
    "same bits": "The same bits: weights and optimizer state are equal.",
    "as expected": "Other bits, but the metrics are as [expect] says.",
    "same metrics": "Other bits, but the metrics differ by no more than the tolerance.",
}
LONGEST = 40


def replay(folder: Path, *, out: Path | None, tolerance: float, quiet: bool, as_json: bool) -> None:
    """Train the spec of a run again, and print whether it came out the same."""
    from taskrecipe.run.console import Silence, show_events
    from taskrecipe.run.handle import Run
    from taskrecipe.sweeps.replay import compare_replay, replay_events

    display = Silence() if quiet or as_json else None
    second = show_events(replay_events(folder, out=out), display=display)
    found = compare_replay(Run(folder), second, tolerance)
    if as_json:
        typer.echo(to_json(found.to_json(), indent=2))
    elif not quiet:
        _print_replay(found)
    if not found.is_same:
        raise NotReproducedError("\n".join([f"{folder} was not reproduced:", *_list_reasons(found)]))


def _list_reasons(found: Replay) -> list[str]:
    subjects = list(dict.fromkeys(one.subject for one in found.conditions))
    reasons = [f"  {line}" for line in [*found.unmet, *found.metrics]] or ["  weights or optimizer state differ"]
    if subjects:
        reasons.append(f"  other conditions: {', '.join(subjects)}")
    return reasons


def _print_replay(found: Replay) -> None:
    typer.echo(printable(WORDS.get(found.verdict, "Not the same.")))
    for note in found.notes:
        print_paragraph(note, 2, "! ")
    if found.conditions:
        print_heading("Conditions that differ")
        rows = [
            [one.subject, one.key, *(_shorten(format_value(value)) for value in one.values)] for one in found.conditions
        ]
        print_columns(["SUBJECT", "KEY", "RUN", "REPLAY"], rows, indent=2)
    typer.echo(printable(f"replay: {found.second.folder}"))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
