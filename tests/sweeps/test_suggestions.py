"""Suggested values depend on seed and known results only, and recorded trials keep theirs."""

from __future__ import annotations

from typing import Any

import pytest

from taskrecipe.spec.sweep import Sweep
from taskrecipe.sweeps.plan import Known
from taskrecipe.sweeps.space import Space
from taskrecipe.sweeps.suggestions import Suggester, measure_importance

SPACE: dict[str, Any] = {
    "train.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
    "train.clip_norm": {"low": 0.5, "high": 2.0},
    "task.max_length": {"low": 8, "high": 64, "int": True},
    "optimizer.betas": [[0.9, 0.99], [0.8, 0.9]],
    "train.batch_size": [8, 16],
}


def make(sampler: str, **space: Any) -> Sweep:
    return Sweep.model_validate({"space": {**SPACE, **space}, "trials": 14, "sampler": sampler})


def result(number: int, values: dict[str, Any]) -> Known:
    if number == 3:
        return Known(3, None)
    value = -abs(values["train.learning_rate"] - 2e-4) * 1000
    return Known(number, value, number == 5, 7)


def suggest_all(sweep: Sweep, restarts: bool, ahead: int = 2) -> list[dict[str, Any]]:
    """All values of a sweep; with `restarts`, each is suggested by another sweeper."""
    suggester, recorded = Suggester(sweep, "max", 3), []
    for number in range(14):
        known = [result(n, recorded[n]) for n in range(number - ahead + 1)]
        recorded.append(suggester.suggest(recorded, known, ahead))
        if restarts:
            suggester = Suggester(sweep, "max", 3)
    return recorded


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
def test_another_sweeper_suggests_the_same(sampler: str) -> None:
    sweep = make(sampler)
    once, again = suggest_all(sweep, restarts=False), suggest_all(sweep, restarts=True)
    assert once == again
    assert len({str(values) for values in once}) == 14
    for values in once:
        assert 1e-5 <= values["train.learning_rate"] <= 1e-3
        assert isinstance(values["task.max_length"], int)
        assert values["optimizer.betas"] in SPACE["optimizer.betas"]


def test_recorded_trials_stay_where_the_space_has_changed() -> None:
    recorded = suggest_all(make("tpe"), restarts=False)[:6]
    narrower = make("tpe", **{"train.learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}})
    known = [result(number, values) for number, values in enumerate(recorded[:5])]
    values = Suggester(narrower, "max", 3).suggest(recorded, known, 2)
    assert 1e-4 <= values["train.learning_rate"] <= 1e-3
    assert values == Suggester(narrower, "max", 3).suggest(recorded, known, 2)


def test_a_grid_is_every_combination_once() -> None:
    space = {"train.batch_size": [8, 16], "task.max_length": {"low": 8, "high": 10, "int": True}}
    grid = Space.of(Sweep.model_validate({"space": space, "sampler": "grid"}))
    points = [tuple(grid.grid_point(number).values()) for number in range(grid.grid_size())]
    assert points == [(8, 8), (8, 9), (8, 10), (16, 8), (16, 9), (16, 10)]


def test_importance_finds_the_key_that_matters() -> None:
    sweep = make("random")
    trials = suggest_all(sweep, restarts=False)
    results = {n: (values, result(n + 20, values).value or 0.0) for n, values in enumerate(trials)}
    shares = measure_importance(Space.of(sweep), results)
    assert shares is not None
    assert max(shares, key=shares.__getitem__) == "train.learning_rate"
    assert sum(shares.values()) == pytest.approx(1.0)
