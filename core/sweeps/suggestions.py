"""Which values the next trial takes: Optuna's samplers, made independent of time.

A suggestion is a function of the space, the seed, and the results of the trials that it may know. For that, a study in
memory is led through the same asks and tells each time, in the order of the trials' numbers, and the sampler of each
ask has a seed of its own. Trials that were recorded keep the values that they have.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.spec.sweep import Sweep
from taskrecipe.sweeps.plan import Known
from taskrecipe.sweeps.space import Space, Values

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

SEED_STEP = 1_000_003
"""Keeps the seeds of two sweeps with neighboring seeds apart."""


class Suggester:
    """Suggests the values of one trial after the other."""

    def __init__(self, sweep: Sweep, direction: str, seed: int) -> None:
        self.sweep, self.direction, self.seed = sweep, direction, seed
        self.space = Space.of(sweep)
        self._study: Any = None
        self._told: dict[int, Known] = {}
        self._asked: list[Values] = []
        self._forced: set[int] = set()
        """Trials whose recorded values are not those that would be suggested: the space or Optuna has changed."""

    def suggest(self, recorded: Sequence[Values], known: Sequence[Known], ahead: int) -> Values:
        """Return the values of the trial after those that are `recorded`."""
        if self.sweep.sampler == "grid" or not self.space.dimensions:
            return self.space.grid_point(len(recorded)) if self.space.dimensions else {}
        if self._study is None or list(recorded) != self._asked or any(self._told.get(k.number, k) != k for k in known):
            while not self._replay(recorded, known, ahead):
                pass
        self._tell([one for one in known if one.number not in self._told])
        return self._ask(len(recorded))

    def _replay(self, recorded: Sequence[Values], known: Sequence[Known], ahead: int) -> bool:
        """Lead a new study to where the recorded trials have been suggested. Return False if it must be done again."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study, self._told, self._asked = optuna.create_study(direction=optuna_direction(self.direction)), {}, []
        results = {one.number: one for one in known}
        for number, values in enumerate(recorded):
            self._tell([results[n] for n in range(number - ahead + 1) if n in results and n not in self._told])
            if number in self._forced:
                self._study.enqueue_trial(self._labels_within(values))
            if self._ask(number) != values and number not in self._forced:
                self._forced.add(number)
                return False
            self._asked[number] = values
        return True

    def _ask(self, number: int) -> Values:
        self._study.sampler = self._make_sampler(self.seed * SEED_STEP + number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask(self.space.distributions())
        values = self.space.from_labels(trial.params)
        self._asked.append(values)
        return values

    def _labels_within(self, values: Values) -> dict[str, Any]:
        """Return the values that the space still has: it may have been changed since."""
        labels: dict[str, Any] = {}
        for dimension in self.space.dimensions:
            if dimension.key in values:
                label, distribution = dimension.to_label(values[dimension.key]), dimension.distribution()
                try:
                    inside = distribution._contains(distribution.to_internal_repr(label))
                except (ValueError, TypeError):
                    inside = False
                labels |= {dimension.key: label} if inside else {}
        return labels

    def _tell(self, known: Sequence[Known]) -> None:
        from optuna.trial import TrialState

        for one in known:
            trial = self._study.trials[one.number]
            if one.value is None:
                self._study.tell(trial.number, state=TrialState.FAIL)
            elif one.is_pruned:
                self._study._storage.set_trial_intermediate_value(trial._trial_id, one.step, one.value)
                self._study.tell(trial.number, state=TrialState.PRUNED)
            else:
                self._study.tell(trial.number, one.value)
            self._told[one.number] = one

    def _make_sampler(self, seed: int) -> BaseSampler:
        from optuna import samplers

        seed %= 2**32
        if self.sweep.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        if self.sweep.sampler == "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        return samplers.TPESampler(seed=seed, n_startup_trials=count_random(self.sweep))


def count_random(sweep: Sweep) -> int:
    """Return how many of the first trials `tpe` draws at random."""
    return min(10, max(4, (sweep.trials or 1) // 4))


def measure_importance(space: Space, results: Mapping[int, tuple[Values, float]]) -> dict[str, float] | None:
    """Return the share of each key in how much the results differ; None where there are too few results."""
    import optuna
    from optuna.trial import create_trial

    changing = [d for d in space.dimensions if len({repr(values.get(d.key)) for values, _ in results.values()}) > 1]
    if len(results) < 4 or len({value for _, value in results.values()}) < 2 or not changing:
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, distributions = optuna.create_study(), space.distributions()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for values, value in results.values():
                study.add_trial(create_trial(params=space.to_labels(values), distributions=distributions, value=value))
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (ValueError, RuntimeError, KeyError):  # values that the space no longer has, or that all are the same
        return None
    return {key: float(share) for key, share in found.items()}


def optuna_direction(direction: str) -> Literal["maximize", "minimize"]:
    """Return Optuna's name of a direction."""
    return "maximize" if direction == "max" else "minimize"
