"""What one process of the loop promises, seen from its events and weights."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch
from tests.support import loops
from tests.support.loops import weights
from tests.support.toyruns import run_to_end, toy_loop, toy_spec, updates
from tests.support.toys import Tagger, tag_rows

from taskrecipe.checkpoints.checkpoint import list_steps
from taskrecipe.errors import NonFiniteError
from taskrecipe.plugins.kinds import Listener
from taskrecipe.training.collate import pad_rows
from taskrecipe.training.events import End, EpochStart, Evaluated, Evaluating, Saved, Start, Updated
from taskrecipe.training.order import Order
from taskrecipe.training.state import Progress


def gradients(
    accumulate: int, rows: int = 37, update: int = 0, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    return loops.gradients(toy_loop(toy_spec(train={"accumulate": accumulate, "batch_size": 8}), rows, dtype), update)


@pytest.mark.parametrize("accumulate", [2, 4, 8])
@pytest.mark.parametrize("update", [0, 4], ids=["full", "short last window"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["f64", "f32"])
def test_accumulation_gives_the_gradients_of_one_batch(accumulate, update, dtype, tolerance) -> None:
    whole = gradients(1, update=update, dtype=dtype)
    split = gradients(accumulate, update=update, dtype=dtype)
    assert max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)) < tolerance


def test_the_first_update_comes_after_all_its_micro_batches() -> None:
    events = updates(run_to_end(toy_loop(toy_spec(train={"accumulate": 4}))))
    assert len(events) == 10  # 2 epochs of ceil(37 / 8), not of ceil(37 / 2)


@pytest.mark.parametrize("order", ["shuffled", "bucketed", "sequential"])
def test_losses_equal_those_of_a_plain_loop(order: str) -> None:
    """The very same numbers, update by update, as a loop written out by hand."""
    spec = toy_spec(train={"order": order}, optimizer={"name": "adamw", "weight_decay": 0.1})
    loop = toy_loop(spec)
    plain = Tagger(0.0)
    plain.load_state_dict(weights(loop))
    decayed = [plain.embedding.weight, plain.head.weight]
    spared = [plain.norm.weight, plain.norm.bias, plain.head.bias]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}], lr=0.01
    )
    rows = tag_rows(37)
    sequence = Order(37, 8, spec.seed, order, loop.objective.recipe.lengths(rows))
    expected = []
    for number in range(10):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (10 - number) / 10
        batch = pad_rows(rows.__getitems__(sequence.rows(number).tolist()), {"labels": -100})
        loss = plain(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert [event.loss for event in updates(run_to_end(loop))] == pytest.approx(expected, rel=1e-5)


def test_the_learning_rate_depends_on_the_update_number_only() -> None:
    rates = [
        [
            event.learning_rate
            for event in updates(run_to_end(toy_loop(toy_spec(train=train, schedule={"warmup": 0.3}))))
        ]
        for train in ({"accumulate": 1}, {"accumulate": 4})
    ]
    assert rates[0] == rates[1]
    assert rates[0][0] == 0.0 < rates[0][1]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_spec_gives_the_same_bits(dropout: float, workers: int) -> None:
    def bits(workers: int) -> dict[str, torch.Tensor]:
        loop = toy_loop(toy_spec(task={"dropout": dropout, "noise": True}, data={"workers": workers}))
        run_to_end(loop)
        return weights(loop)

    first, second = bits(0), bits(workers)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_examples_are_varied_anew_each_epoch_but_not_in_evaluation() -> None:
    loop = toy_loop(toy_spec(task={"noise": True}, train={"order": "sequential"}))
    per_epoch = loop.per_epoch
    first, again = (next(loop.state.updates(number)).batches[0].inputs["input_ids"] for number in (0, per_epoch))
    assert not torch.equal(first, again)
    evaluation = loop.evaluations[0]
    seen = []
    loop.state.module.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    for _ in range(2):
        next(evaluation.run(loop.model))
    assert torch.equal(*seen)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 64])
def test_metrics_do_not_depend_on_the_evaluation_batch_size(batch_size: int) -> None:
    loop = toy_loop(toy_spec(evaluate={"batch_size": batch_size}), dtype=torch.float64)
    reference = toy_loop(toy_spec(), dtype=torch.float64)
    numbers = [loops.evaluated(each) for each in (loop, reference)]
    assert numbers[0]["accuracy"] == numbers[1]["accuracy"]
    assert numbers[0]["loss"] == pytest.approx(numbers[1]["loss"], rel=1e-14)


def test_evaluation_loss_is_a_mean_over_items_not_over_batches() -> None:
    loop = toy_loop(toy_spec(evaluate={"batch_size": 2}), dtype=torch.float64)
    metrics = loops.evaluated(loop)
    batch = pad_rows(list(tag_rows(21, seed=1)), {"labels": -100})
    assert metrics["loss"] == pytest.approx(loop.state.module(**batch).loss.item(), rel=1e-12)


def test_a_non_finite_loss_never_reaches_the_weights() -> None:
    loop = toy_loop(toy_spec(train={"order": "sequential"}))
    before = weights(loop)
    original = loop.objective.recipe.loss

    def poisoned(outputs, batch, training):
        return {"loss": original(outputs, batch, training)["loss"] * math.nan}

    loop.objective.recipe.loss = poisoned
    with pytest.raises(NonFiniteError, match=r"update 1: .* learning rate 0\.01.*Rows in it: 0, 1, 2, 3, 4, 5, 6, 7"):
        run_to_end(loop)
    assert all(torch.equal(before[name], value) for name, value in weights(loop).items())
    assert loop.progress.step == 0


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"], ids=["skips on the device", "must be asked"])
def test_an_infinite_gradient_is_noticed_with_any_optimizer(optimizer: str) -> None:
    loop = toy_loop(toy_spec(optimizer={"name": optimizer}))
    loop.state.module.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = weights(loop)
    with pytest.raises(NonFiniteError):
        run_to_end(loop)
    assert all(torch.equal(before[name], value) for name, value in weights(loop).items())


def test_an_update_with_nothing_to_predict_is_named() -> None:
    loop = toy_loop(toy_spec(train={"order": "sequential"}))
    loop.objective.recipe.loss_counts = lambda batch: {"loss": 0.0}
    with pytest.raises(NonFiniteError, match=r"update 1 has nothing to predict.*rows 0, 1, 2"):
        run_to_end(loop)


def test_a_micro_batch_with_nothing_to_predict_changes_nothing() -> None:
    """A mean over no items is NaN; with a weight of 0 it must not spread."""
    loop = toy_loop(toy_spec(train={"accumulate": 4, "order": "sequential"}), rows=8)
    update = next(loop.state.updates(0))
    update.batches[1].inputs["labels"].fill_(-100)
    update.batches[1].counts["loss"] = 0.0
    update.counts["loss"] = sum(batch.counts["loss"] for batch in update.batches)
    update.compute_gradients()
    assert all(torch.isfinite(parameter.grad).all() for parameter in loop.state.module.parameters())


def test_what_happens_and_when(tmp_path: Path) -> None:
    loop = toy_loop(toy_spec(evaluate={"every": 4}, checkpoint={"every": 3}), folder=tmp_path)
    events = run_to_end(loop)
    assert isinstance(events[0], Start)
    assert isinstance(events[-1], End)
    assert [event.step for event in events if isinstance(event, EpochStart)] == [0, 5]
    assert [event.step for event in events if isinstance(event, Evaluated)] == [4, 8, 10]
    saved = {event.step for event in events if isinstance(event, Saved)}
    best = {event.step for event in events if isinstance(event, Evaluated) and event.best}
    assert saved == {3, 6, 9, 10} | best == {step for step, _ in list_steps(tmp_path)}


class _Asks(Listener):
    def __init__(self, at: int, what: str) -> None:
        self.at, self.what = at, what

    def on_event(self, event, control) -> None:
        if event.name == "update" and event.step == self.at:
            getattr(control, self.what)(*(["enough"] if self.what == "stop" else []))


@pytest.mark.parametrize(
    ("what", "evaluated", "saved"), [("stop", [2], [2]), ("evaluate", [2, 10], [2, 10]), ("save", [10], [2, 10])]
)
def test_a_listener_can_act(what: str, evaluated: list[int], saved: list[int], tmp_path: Path) -> None:
    loop = toy_loop(toy_spec(evaluate={"every": "end"}, checkpoint={"every": "end"}), folder=tmp_path)
    listener, events = _Asks(2, what), []
    for event in loop.run():
        listener.on_event(event, loop.control)
        events.append(event)
    assert [event.step for event in events if isinstance(event, Evaluated)] == evaluated
    assert set(saved) <= {event.step for event in events if isinstance(event, Saved)}
    assert events[-1].step == (2 if what == "stop" else 10)


def test_patience_ends_the_run_and_survives_in_progress() -> None:
    spec = toy_spec(train={"learning_rate": 1e-9}, evaluate={"every": 1, "patience": 2})
    loop = toy_loop(spec)
    events = run_to_end(loop)
    assert events[-1].step == 3  # the first is the best, then two that are no better
    assert "no better accuracy in 2 evaluations" in events[-1].reason
    again = toy_loop(spec, progress=loop.progress)
    assert [type(event) for event in again.run(resumed=True)] == [Start, End]


def test_the_average_of_the_weights_is_what_is_evaluated() -> None:
    loop = toy_loop(toy_spec(train={"ema": 0.9}))
    seen = []
    inner = loop.evaluations[0].recipe.score
    loop.objective.recipe.score = lambda predictions, rows: seen.append(weights(loop)) or inner(predictions, rows)
    run_to_end(loop)
    assert torch.allclose(seen[-1]["head.weight"], loop.state.ema.average["head.weight"])
    assert not torch.allclose(seen[-1]["head.weight"], loop.state.module.head.weight)


def test_time_is_booked_over_all_parts_of_a_run() -> None:
    before = Progress(seconds={"training": 1000.0, "evaluation": 500.0})
    loop = toy_loop(toy_spec(), progress=before)
    start = time.perf_counter()
    run_to_end(loop)
    spent = loop.progress.seconds
    assert set(spent) == {"training", "evaluation", "saving"}
    assert spent["training"] > 1000.0
    assert spent["evaluation"] > 500.0
    assert sum(spent.values()) - 1500.0 <= time.perf_counter() - start


def test_dropout_is_on_in_training_and_off_in_evaluation() -> None:
    loop = toy_loop(toy_spec(evaluate={"batch_size": 7}))
    training = []
    loop.state.module.register_forward_hook(lambda module, *_: training.append(module.training))
    run_to_end(loop)
    epoch = [True] * 5 + [False] * 3
    assert training == epoch * 2


def test_the_average_of_the_weights_moves_as_computed_by_hand() -> None:
    loop = toy_loop(toy_spec(train={"ema": 0.9}))
    expected = weights(loop)["head.weight"]
    for event in loop.run():
        if isinstance(event, Updated):
            expected = 0.9 * expected + 0.1 * weights(loop)["head.weight"]
    assert torch.allclose(loop.state.ema.average["head.weight"], expected)


def test_only_every_so_many_updates_is_a_line_of_the_log() -> None:
    events = updates(run_to_end(toy_loop(toy_spec(log={"every": 4}))))
    assert len(events) == 10
    assert [event.step for event in events if event.logged] == [1, 4, 8, 10]
    assert all(event.loss is not None for event in events if event.logged)


def test_a_signal_in_the_last_evaluation_stops_a_run_that_is_not_finished() -> None:
    loop, end = toy_loop(toy_spec(evaluate={"every": "end", "batch_size": 1})), None
    for event in loop.run():
        if isinstance(event, Evaluating):
            loop.control.interrupt(15, "interrupted by SIGTERM")
        end = event
    assert end == End(10, "stopped", "interrupted by SIGTERM")
    assert loop.progress.evaluated == 0  # so that it is due when the run goes on
