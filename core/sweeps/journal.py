"""`journal.log`: Optuna's record of a sweep. A trial's values are in it before its first run starts.

Only the sweeper that plans writes it, one whole line at a time. Optuna's own lock protects it from other programs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.sweeps.plan import Trial
from taskrecipe.sweeps.space import Space, Values
from taskrecipe.sweeps.suggestions import optuna_direction

if TYPE_CHECKING:
    from optuna import Study

STUDY = "sweep"
VALUES = "values"
"""The attribute of a trial that holds its values as they are in a spec."""


class Journal:
    """The recorded trials of a sweep. Use it while you hold the planning lock."""

    def __init__(self, path: Path, direction: str) -> None:
        self.path, self.direction = path, direction
        self._study: Study | None = None

    def read(self) -> list[Values]:
        """Return the values of each trial, in the order of their numbers."""
        return [dict(trial.user_attrs[VALUES]) for trial in self._open().get_trials(deepcopy=False)]

    def add(self, space: Space, values: Values) -> None:
        """Record the values of a new trial, in one line."""
        from optuna.trial import TrialState, create_trial

        labels, distributions = space.to_labels(values), space.distributions()
        attributes: dict[str, Any] = {VALUES: values}
        running = TrialState.RUNNING
        self._open().add_trial(
            create_trial(state=running, params=labels, distributions=distributions, user_attrs=attributes)
        )

    def conclude(self, trials: Sequence[Trial], going: set[int]) -> None:
        """Record how the trials ended that have nothing left to do: those that are not among `going`."""
        from optuna.trial import TrialState

        study = self._open()
        for trial, recorded in zip(trials, study.get_trials(deepcopy=False), strict=False):
            if recorded.state != TrialState.RUNNING or trial.number in going:
                continue
            if trial.has_failed:
                study.tell(trial.number, state=TrialState.FAIL)
            elif trial.is_finished and trial.value is not None:
                study.tell(trial.number, trial.value)
            elif trial.is_paused and trial.value is not None:
                step = max(run.updates for run in trial.runs)
                study._storage.set_trial_intermediate_value(recorded._trial_id, step, trial.value)
                study.tell(trial.number, state=TrialState.PRUNED)

    def _open(self) -> Study:
        """Return the study. It reads what other sweepers have added since."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        if _repair(self.path) or self._study is None:
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            storage, way = JournalStorage(JournalFileBackend(str(self.path))), optuna_direction(self.direction)
            self._study = optuna.create_study(storage=storage, study_name=STUDY, direction=way, load_if_exists=True)
        return self._study


def _repair(path: Path) -> bool:
    """Remove what a sweeper that was killed has left: Optuna's lock and half a line. Return whether a line was cut."""
    lock = path.with_name(f"{path.name}.lock")
    if lock.is_symlink():
        lock.unlink(missing_ok=True)
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() == b"\n":
            return False
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.flush()
        os.fsync(file.fileno())
    return True
