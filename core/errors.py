"""All errors that this project raises on purpose, each with the exit code of the command.

RecipeError                     1   any of these errors
├── UsageError                  2   the command line or an argument asks for something impossible
├── SpecError                   2   the spec is wrong; holds every problem found in it
├── UnknownNameError            2   no installed plugin has that name
├── NameClashError              2   several installed plugins have that name
├── DataError                   3   the data doesn't fit the recipe
├── RunStopped                  4   the run stopped itself; its checkpoints are intact
│   ├── NonFiniteError          4   a loss or gradient was NaN or infinite
│   └── DiskFullError           4   there was no space for a checkpoint
├── UnmetExpectationError       4   a run has finished, but not as its [expect] says
├── NotReproducedError          4   an evaluation did not give the numbers that were logged
├── PluginError                 5   code of a plugin failed
├── DamagedCheckpointError      1   a checkpoint's files are not what was written
├── ExportError                 1   a model can't be exported, or what was exported is not the trained model
└── Interrupted           130/143   a signal stopped the run; the checkpoint is saved

This module imports nothing heavy, so any command can use it at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskrecipe.spec.diagnostics import Problem


class RecipeError(Exception):
    """An error whose message says what was wrong, what was found and what to do."""

    exit_code = 1
    code = ""
    """The name of its section in `recipe guide`; empty if the message says it all."""


class UsageError(RecipeError):
    """The command line or an argument asks for something impossible."""

    exit_code = 2


class SpecError(RecipeError):
    """A spec is wrong. `problems` holds everything found in it, each with its place in the file."""

    exit_code = 2
    code = "spec"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownNameError(RecipeError):
    """No installed plugin of that group has that name; `known` holds the installed names."""

    exit_code = 2
    code = "unknown-name"

    def __init__(self, group: str, name: str, known: list[str]) -> None:
        self.group, self.name, self.known = group, name, known
        super().__init__(f"no {group[:-1]} is called {name!r}; installed: {', '.join(known) or 'none'}")


class NameClashError(RecipeError):
    """Several distributions registered one name; `owners` holds the unambiguous names."""

    exit_code = 2
    code = "ambiguous-name"

    def __init__(self, group: str, name: str, owners: list[str]) -> None:
        self.group, self.name, self.owners = group, name, owners
        super().__init__(
            f"{group[:-1]} {name!r} is registered by {' and by '.join(o.split(':')[0] for o in owners)}; "
            f"say which one is meant: {' or '.join(repr(o) for o in owners)}"
        )


class DataError(RecipeError):
    """The data doesn't fit the recipe. The message names the split, row and column where there is one.

    `row` counts the rows of the split from 0. `place` says which record of which file that is.
    """

    exit_code = 3
    code = "data"

    def __init__(
        self,
        message: str,
        *,
        split: str | None = None,
        row: int | None = None,
        column: str | None = None,
        place: str | None = None,
    ) -> None:
        self.message, self.split, self.row, self.column, self.place = message, split, row, column, place
        where = [f"split {split!r}"] if split is not None else []
        where += [place or f"row {row}"] if place or row is not None else []
        where += [f"column {column!r}"] if column is not None else []
        super().__init__(f"{', '.join(where)}: {message}" if where else message)


class RunStopped(RecipeError):  # noqa: N818 - an outcome, not a fault
    """The run stopped itself; its checkpoints are intact."""

    exit_code = 4
    code = "stopped"


class NonFiniteError(RunStopped):
    """A loss or gradient was NaN or infinite. The update, counted from 1, was not applied."""

    code = "non-finite"

    def __init__(self, message: str, update: int | None = None) -> None:
        self.update = update
        super().__init__(message)


class DiskFullError(RunStopped):
    """There was no space for a checkpoint. Earlier checkpoints are intact."""

    code = "disk-full"


class UnmetExpectationError(RecipeError):
    """A run has finished, but not as the `[expect]` of its spec says. The message lists each difference."""

    exit_code = 4


class NotReproducedError(RecipeError):
    """An evaluation of trained weights did not give the numbers that were logged. The message lists each of them."""

    exit_code = 4
    code = "not-reproduced"


class PluginError(RecipeError):
    """Code of a plugin failed. The message names its entry point, distribution, version and cause."""

    exit_code = 5
    code = "plugin"


class DamagedCheckpointError(RecipeError):
    """A checkpoint's files are not what was written. The message names the file and what is wrong with it."""

    code = "damaged-checkpoint"


class ExportError(RecipeError):
    """A model can't be exported or uploaded, or what was exported is not the trained model. Nothing was written."""

    code = "export"


class Interrupted(RecipeError):  # noqa: N818 - the user asked for it
    """A signal stopped the run. `exit_code` is 128 plus the signal's number, as in shells."""

    code = "interrupted"

    def __init__(self, signum: int, message: str | None = None) -> None:
        import signal

        self.signum = signum
        self.exit_code = 128 + signum
        super().__init__(message or f"interrupted by {signal.Signals(signum).name}")
