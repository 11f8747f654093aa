import json
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import get_scheduler

from taskrecipe.errors import UsageError
from taskrecipe.plugins.kinds import MetricLrFactor
from taskrecipe.plugins.registry import installed
from taskrecipe.plugins.schedules import length_in_updates

PEAK = 3e-4
UPDATES = 50

# name, our options, transformers' options at the same peak
CASES = [
    ("linear", {}, {}),
    ("cosine", {}, {}),
    ("cosine", {"num_cycles": 1.5}, {"num_cycles": 1.5}),
    ("cosine_with_restarts", {}, {}),
    ("cosine_with_restarts", {"num_cycles": 3}, {"num_cycles": 3}),
    ("polynomial", {}, {"lr_end": 0.0}),
    ("polynomial", {"power": 2.5, "min_lr_rate": 0.25}, {"power": 2.5, "lr_end": 0.25 * PEAK}),
    ("constant", {}, {}),
    ("constant_with_warmup", {}, {}),
    ("inverse_sqrt", {}, {}),
    ("inverse_sqrt", {"timescale": 7}, {"timescale": 7}),
    ("cosine_with_min_lr", {}, {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.3, "num_cycles": 1.0}, {"min_lr": 0.3 * PEAK, "num_cycles": 1.0}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.3}, {"min_lr_rate": 0.3}),
    (
        "cosine_warmup_with_min_lr",
        {"min_lr_rate": 0.3, "warmup_lr_rate": 0.2},
        {"min_lr_rate": 0.3, "warmup_lr_rate": 0.2},
    ),
    ("warmup_stable_decay", {}, {"num_decay_steps": 5}),
    (
        "warmup_stable_decay",
        {"decay": 20, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.2},
        {"num_decay_steps": 20, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.2},
    ),
    ("warmup_stable_decay", {"decay": 0.4, "num_cycles": 1.0}, {"num_decay_steps": 20, "num_cycles": 1.0}),
]


def table_of(name, **options):
    return installed().schedule(name).model_validate({"name": name, **options})


def optimizer_at(peak):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)


def stepped(name, warmup, options):
    """The rates of transformers' scheduler, stepped after each update as its users do."""
    optimizer = optimizer_at(PEAK)
    scheduler = get_scheduler(name, optimizer, warmup, UPDATES, options)
    rates = []
    for _ in range(UPDATES):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 1, 9])
@pytest.mark.parametrize(("name", "ours", "theirs"), CASES)
def test_rates_equal_those_of_transformers(name, ours, theirs, warmup):
    given_warmup = {} if name == "constant" else {"warmup": warmup}
    rate = table_of(name, **ours, **given_warmup).build(UPDATES, warmup)
    rates = [PEAK * rate(update) for update in range(UPDATES)]
    assert rates == pytest.approx(stepped(name, warmup, theirs), rel=1e-12, abs=1e-18)


@pytest.mark.parametrize(("name", "ours", "_theirs"), CASES)
def test_rates_depend_on_the_update_number_only(name, ours, _theirs):
    rates = [table_of(name, **ours).build(UPDATES, 0)(update) for update in range(UPDATES)]
    for start in range(0, UPDATES, 7):
        rate = table_of(name, **ours).build(UPDATES, 0)
        assert [rate(update) for update in range(start, UPDATES)] == rates[start:]
        assert all(type(value) is float for value in rates)


def test_the_cases_are_all_schedules_of_the_update_number():
    followed = {"reduce_lr_on_plateau", "greedy"}
    own = {p.name for p in installed().plugins if p.group == "schedules" and p.distribution == "taskrecipe"}
    assert {name for name, _, _ in CASES} | followed == own


# Rates that follow a metric ---------------------------------------------------------------------------

FOLLOWED = [
    (
        "reduce_lr_on_plateau",
        {"factor": 0.5, "patience": 1, "threshold": 0.01, "cooldown": 1, "min_lr_rate": 0.1},
        {"factor": 0.5, "patience": 1, "threshold": 0.01, "threshold_mode": "abs", "cooldown": 1, "min_lr": 0.1},
    ),
    (
        "greedy",
        {"factor": 0.5, "patience": 1, "threshold": 0.01, "cooldown": 1, "growth_cooldown": 2, "reset_after": 2},
        {
            "factor": 0.5,
            "patience": 1,
            "threshold": 0.01,
            "cooldown": 1,
            "warmup": 2,
            "reset_start": 2,
            "min_lr": 0.01,
            "max_lr": 10.0,
        },
    ),
    (
        "greedy",
        {"factor": 0.5, "patience": 0, "min_lr_rate": 0.25, "max_lr_rate": 2.0, "reset_after": 1},
        {"factor": 0.5, "patience": 0, "min_lr": 0.25, "max_lr": 2.0, "reset_start": 1},
    ),
]
VALUES = [3.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.7, math.nan, 0.5, 0.495, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 0.1, 0.2]
VALUES += [-value for value in VALUES]


def observed(rate, values):
    rates = []
    for value in values:
        rate.observe(value)
        rates.append(rate(1000))
    return rates


@pytest.mark.parametrize(("name", "ours", "theirs"), FOLLOWED)
def test_rates_that_follow_a_metric_equal_those_of_transformers(name, ours, theirs):
    optimizer = optimizer_at(1.0)
    scheduler = get_scheduler(name, optimizer, scheduler_specific_kwargs=theirs)
    expected = []
    for value in VALUES:
        optimizer.step()
        scheduler.step(value)
        expected.append(optimizer.param_groups[0]["lr"])
    rates = observed(table_of(name, **ours).build(UPDATES, 0), VALUES)
    assert rates == expected
    assert len(set(rates)) > 2


@pytest.mark.parametrize(("name", "ours", "_theirs"), FOLLOWED)
@pytest.mark.parametrize("cut", range(0, len(VALUES), 3))
def test_a_metric_s_rate_resumes_exactly_after_any_evaluation(name, ours, _theirs, cut):
    whole = table_of(name, **ours).build(UPDATES, 0)
    rates = observed(whole, VALUES)
    first, second = (table_of(name, **ours).build(UPDATES, 0) for _ in range(2))
    observed(first, VALUES[:cut])
    observed(second, [9.0, 8.0, 9.0, 9.0])  # whatever it knew is forgotten
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert observed(second, VALUES[cut:]) == rates[cut:]
    assert second.state() == whole.state()


def test_reduce_lr_on_plateau_sees_the_plateau_of_a_metric_that_is_better_when_higher():
    rate = table_of("reduce_lr_on_plateau", patience=1).build(UPDATES, 0)
    assert observed(rate, [-0.9, -0.9, -0.9])[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "greedy"])
def test_a_metric_s_rate_can_warm_up(name):
    rate = table_of(name, warmup=4).build(UPDATES, 4)
    assert isinstance(rate, MetricLrFactor)
    assert [rate(update) for update in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


# Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear", "polynomial", "greedy"])
@pytest.mark.parametrize("warmup", [UPDATES, UPDATES + 1])
def test_a_warmup_as_long_as_the_run_is_refused(name, warmup):
    with pytest.raises(UsageError, match=rf"{warmup} updates.*{UPDATES}.*never reach its peak"):
        table_of(name).build(UPDATES, warmup)


def test_warmup_and_decay_must_fit_into_the_run():
    with pytest.raises(UsageError, match="warmup of 31 updates and decay of 20 do not fit into a run of 50"):
        table_of("warmup_stable_decay", decay=20).build(UPDATES, 31)
    table_of("warmup_stable_decay", decay=20).build(UPDATES, 30)


def test_constant_has_no_warmup_to_ignore():
    with pytest.raises(ValueError, match="constant_with_warmup"):
        table_of("constant", warmup=0.1)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("linear", {"warmup": -1}, "warmup"),
        ("linear", {"warmup": 1.0}, "warmup"),
        ("linear", {"warmup": 10**30}, "warmup"),
        ("cosine", {"num_cycles": 0.0}, "num_cycles"),
        ("cosine_with_restarts", {"num_cycles": 0.5}, "num_cycles"),
        ("polynomial", {"min_lr_rate": 1.0}, "min_lr_rate"),
        ("inverse_sqrt", {"timescale": 0}, "timescale"),
        ("warmup_stable_decay", {"decay_type": "sqrt"}, "decay_type"),
        ("reduce_lr_on_plateau", {"factor": 1.0}, "factor"),
        ("greedy", {"max_lr_rate": 0.5}, "max_lr_rate"),
    ],
)
def test_values_that_cannot_be_are_refused_by_key(name, options, key):
    with pytest.raises(ValueError, match=key):
        table_of(name, **options)


@given(updates=st.integers(1, 10**6), part=st.integers(1, 999))
@example(updates=100, part=70)  # 0.07 * 100 is 7.000000000000001
@settings(max_examples=100, deadline=None)
def test_a_share_is_rounded_up_to_whole_updates(updates, part):
    exact = -(-updates * part // 1000)
    assert length_in_updates(part / 1000, updates) == exact


def test_a_number_of_updates_is_taken_as_it_is():
    assert length_in_updates(7, 100) == 7
