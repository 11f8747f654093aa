"""Every error a user can cause or meet, each with the exit code it ends in.

RecipeError                 1   anything this project raises on purpose
├── UsageError              2   the command line asks for something that can't be
├── SpecError               2   the spec is wrong; carries every problem found in it
├── DataError               3   the data doesn't fit the recipe
├── RunStopped              4   the run ended itself to keep what it has
│   ├── NonFiniteError      4   a loss or gradient was not a number
│   └── DiskFullError       4   a checkpoint found no room
├── PluginError             5   code of another distribution failed
└── Interrupted       130/143   a signal came; the checkpoint is saved

This module imports nothing heavy, so that any command can name an error at no cost.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskrecipe.core.spec.diagnostics import Problem


class RecipeError(Exception):
    """An error with a message for its reader: what was wrong, what was found, what to do."""

    exit_code = 1


class UsageError(RecipeError):
    """The command line asks for something that can't be."""

    exit_code = 2


class SpecError(RecipeError):
    """A spec has problems; all of them are in `problems`, each with its place in the file."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DataError(RecipeError):
    """The data doesn't fit the recipe; the message names split, row and column where there is one."""

    exit_code = 3

    def __init__(
        self, message: str, *, split: str | None = None, row: int | None = None, column: str | None = None
    ) -> None:
        self.split, self.row, self.column = split, row, column
        where = [
            f"{name} {value!r}" if name != "row" else f"row {value}"
            for name, value in (("split", split), ("row", row), ("column", column))
            if value is not None
        ]
        super().__init__(f"{', '.join(where)}: {message}" if where else message)


class RunStopped(RecipeError):  # noqa: N818 - a run that stops itself is an outcome, not a fault
    """The run ended itself to keep what it has."""

    exit_code = 4


class NonFiniteError(RunStopped):
    """A loss or a gradient was NaN or infinite; the update was not taken."""


class DiskFullError(RunStopped):
    """There was no room for a checkpoint; the earlier ones are intact."""


class PluginError(RecipeError):
    """Code of another distribution failed; the message names entry point, distribution, version and cause."""

    exit_code = 5


class Interrupted(RecipeError):  # noqa: N818 - an outcome the user asked for
    """A signal ended the run; `exit_code` is the shell's convention for it."""

    def __init__(self, signum: int, message: str | None = None) -> None:
        self.signum = signum
        self.exit_code = 128 + signum
        super().__init__(message or f"interrupted by {signal.Signals(signum).name}")
