"""A signal saves within one update or one evaluation batch, and the run resumes exactly; a second ends it at once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from tests.support.commands import Started, Zygote
from tests.support.runs import bits, log, results, resume, train, write_spec

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129, signal.SIGUSR1: 138}


def wait_for(started: Started, text: str) -> None:
    """Wait until a run has said something."""
    end = time.monotonic() + 60
    while text not in started.stderr:
        assert started.poll() is None, started.stderr
        assert time.monotonic() < end, started.stderr
        time.sleep(0.01)


@pytest.mark.parametrize("signum", CODES)
def test_a_signal_saves_and_says_how_to_go_on(signum: signal.Signals, zygote: Zygote, tmp_path: Path) -> None:
    changes = {"checkpoint.every": "'end'", "train.updates": 200, "evaluate.every": 100}  # time enough for a signal
    options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    spec = write_spec(tmp_path)
    whole = train(zygote, spec, "whole", *options)
    folder = tmp_path / "run"
    started = zygote.start("run", str(spec), "--out", str(folder), *options, cwd=tmp_path)
    wait_for(started, "update 2:")
    started.send(signum)
    assert started.wait() == CODES[signum]
    assert f"recipe resume {folder}" in started.stderr
    assert "Traceback" not in started.stderr
    assert results(folder)["status"] == "stopped"
    assert results(folder)["updates"] < 200
    done = resume(zygote, folder)
    assert done.code == 0, done.stderr
    assert bits(zygote, folder) == bits(zygote, whole)


@pytest.mark.parametrize("trials", [2, pytest.param(30, marks=pytest.mark.chaos)])
def test_signals_at_random_moments(trials: int, zygote: Zygote, tmp_path: Path) -> None:
    """Loading, preprocessing, updates, evaluations and saves are all hit, given enough trials."""
    spec = write_spec(tmp_path)
    begin = time.monotonic()
    expected = bits(zygote, train(zygote, spec, "whole"))
    duration, chance = time.monotonic() - begin, random.Random(trials)
    for trial in range(trials):
        folder, signum = tmp_path / f"trial-{trial}", chance.choice(list(CODES))
        started = zygote.start("run", str(spec), "--out", str(folder), cwd=tmp_path)
        time.sleep(chance.uniform(0.0, duration))
        started.send(signum)
        code = started.wait()
        # Before there is anything to save the system's own way of ending is good enough; a shell calls it the same.
        assert code in (0, CODES[signum], -signum), started.stderr
        assert "Traceback" not in started.stderr
        if code == 0:
            continue
        begun = (folder / "spec.toml").exists()
        done = (
            resume(zygote, folder)
            if begun
            else zygote.run("run", str(spec), "--out", str(folder), "--resume", cwd=tmp_path)
        )
        assert done.code == 0, done.stderr
        assert bits(zygote, folder) == expected
        assert [line["step"] for line in log(folder, "update")] == list(range(1, 10))


def test_a_signal_during_evaluation_leaves_it_due(zygote: Zygote, tmp_path: Path) -> None:
    spec, options = write_spec(tmp_path), ("--set", "evaluate.batch_size=1", "--set", "train.updates=30")
    whole = train(zygote, spec, "whole", *options)
    folder = tmp_path / "run"
    started = zygote.start("run", str(spec), "--out", str(folder), *options, cwd=tmp_path)
    wait_for(started, "update 3:")
    started.send(signal.SIGTERM)
    assert started.wait() == 143
    assert resume(zygote, folder).code == 0
    assert [line["step"] for line in log(folder, "evaluate")] == list(range(3, 31, 3))
    assert [line["metrics"] for line in log(folder, "evaluate")] == [line["metrics"] for line in log(whole, "evaluate")]
    assert bits(zygote, folder) == bits(zygote, whole)


def test_a_second_signal_ends_at_once(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    folder = tmp_path / "run"
    started = zygote.start("run", str(spec), "--out", str(folder), "--set", "train.updates=100000", cwd=tmp_path)
    wait_for(started, "update 2:")
    started.send(signal.SIGTERM)
    started.send(signal.SIGTERM)
    assert started.wait(30) == 143
    assert resume(zygote, folder, "--set", "train.updates=9", "--allow", "train.updates").code == 0
