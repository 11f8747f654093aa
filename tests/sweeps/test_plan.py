"""What a sweep does next is a function of what its runs have found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe.spec.sweep import Sweep
from taskrecipe.sweeps.cost import count_full_trials
from taskrecipe.sweeps.plan import Job, Planner, Trial
from taskrecipe.sweeps.trial_runs import Evaluation, TrialRun

TOTAL, EVERY = 27, 3
SPACE = {"train.learning_rate": {"low": 1e-5, "high": 1e-3}}


def planner(**keys: object) -> Planner:
    return Planner(Sweep.model_validate({"space": SPACE, "trials": 9, **keys}), "max")


def quality(number: int, step: int) -> float:
    """A metric that differs between trials, and whose order changes as they train."""
    return (number * 7 % 10) / 10 + step * ((number * 3) % 5) / 100


def train(run: TrialRun, number: int, job: Job) -> TrialRun:
    """The run as it is when its process has done what the job asks for."""
    steps: list[Evaluation] = []
    best = -1.0
    for step in range(EVERY, TOTAL + 1, EVERY):
        best = max(best, quality(number, step))
        steps.append(Evaluation(step, best))
        pause = job.pause
        limit = [value for share, value in (pause.limits if pause else ()) if share <= step / TOTAL]
        is_rung = pause is not None and pause.share is not None and step >= pause.share * TOTAL - 1e-9
        if step < TOTAL and (is_rung or (limit and best < limit[-1])):
            return TrialRun(run.name, run.seed, "paused", step, TOTAL, tuple(steps))
    return TrialRun(run.name, run.seed, "finished", TOTAL, TOTAL, tuple(steps))


def work(rules: Planner, dice: random.Random, failing: frozenset[int] = frozenset()) -> list[Trial]:
    """Lead a sweep to its end: whichever process happens to be next does what is due for it."""
    trials: list[Trial] = []
    for _ in range(10_000):
        if rules.is_done(trials):
            return trials
        jobs = rules.jobs(trials)
        if rules.may_suggest(trials) and (not jobs or dice.random() < 0.5):
            number = len(trials)
            runs = tuple(TrialRun(f"{number}-{seed}", seed) for seed in range(rules.sweep.seeds))
            trials.append(Trial(number, {"known": str(rules.known_before(number, trials))}, runs))
            continue
        job = dice.choice(jobs)
        trial = trials[job.trial]
        done = (
            TrialRun(job.run.name, 0, "failed", error="NaN") if job.trial in failing else train(job.run, job.trial, job)
        )
        runs = tuple(done if run.name == done.name else run for run in trial.runs)
        trials[job.trial] = Trial(trial.number, trial.values, runs)
    raise AssertionError("it does not end")


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pruner=st.sampled_from(["none", "median", "halving"]),
    sampler=st.sampled_from(["random", "tpe"]),
    ahead=st.integers(1, 5),
    seeds=st.integers(1, 2),
    failing=st.frozensets(st.integers(0, 8), max_size=3),
)
def test_the_order_in_which_runs_end_changes_nothing(
    seed: int, pruner: str, sampler: str, ahead: int, seeds: int, failing: frozenset[int]
) -> None:
    rules = planner(pruner=pruner, sampler=sampler, parallel=ahead, seeds=seeds)
    one, other = (work(rules, random.Random(number), failing) for number in (seed, seed + 1))
    assert [summarize(trial) for trial in one] == [summarize(trial) for trial in other]


def summarize(trial: Trial) -> object:
    """What counts of a trial. Of one that has failed, the other seeds need not be trained."""
    return trial.values, None if trial.has_failed else trial.runs


def test_halving_promotes_the_best_third_of_each_rung() -> None:
    rules = planner(pruner="halving")
    trials = work(rules, random.Random(0))
    rungs = [[trial.number for trial in survivors] for _, survivors in rules.rungs(trials)]
    assert [len(rung) for rung in rungs] == [9, 3, 1]
    at_first = sorted(range(9), key=lambda number: (-quality(number, 3), number))
    assert rungs[1] == sorted(at_first[:3])
    assert [run.updates for trial in trials for run in trial.runs].count(TOTAL) == 1
    assert count_full_trials(rules) == pytest.approx(9 / 9 + 3 * (1 / 3 - 1 / 9) + (1 - 1 / 3))


def test_no_trial_is_suggested_before_those_it_may_know_are_done() -> None:
    rules = planner(sampler="tpe", parallel=2)
    trials = [Trial(0, {}, (TrialRun("0", 0),)), Trial(1, {}, (TrialRun("1", 0),))]
    assert not rules.may_suggest(trials)
    done = train(trials[0].runs[0], 0, Job(0, trials[0].runs[0]))
    assert rules.may_suggest([Trial(0, {}, (done,)), trials[1]])
    assert planner(sampler="random", parallel=2).may_suggest(trials)


def test_median_prunes_a_trial_that_is_worse_than_half_of_the_earlier_ones() -> None:
    trials = work(planner(pruner="median", trials=9), random.Random(3))
    states = [trial.runs[0].status for trial in trials]
    assert states[:5] == ["finished"] * 5
    assert "paused" in states[5:]
    assert "finished" in states[5:]


def test_a_sweep_ends_when_too_many_trials_fail() -> None:
    def failed(*numbers: int) -> list[Trial]:
        status = ["failed" if number in numbers else "finished" for number in range(6)]
        runs = [TrialRun(str(n), 0, s, evaluations=(Evaluation(1, 0.5),)) for n, s in enumerate(status)]  # type: ignore[arg-type]
        return [Trial(number, {}, (run,)) for number, run in enumerate(runs)]

    rules = planner(max_failures=3)
    assert not rules.too_many_failures(failed(0, 1, 5))
    assert rules.too_many_failures(failed(0, 1, 3, 5))
    assert rules.too_many_failures(failed(0, 1, 2))  # the first three: the others would fail too
