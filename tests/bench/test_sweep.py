"""What a trial of a sweep costs beside its training, and what halving saves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.sidebyside import compare
from tests.support.sweeps import write_sweep

pytestmark = pytest.mark.bench

TRIALS = 3
UPDATES = 600
"""A run of some seconds: beside its training a trial costs about a quarter of a second."""
RATES = [1e-3, 9e-4, 8e-4, 7e-4, 6e-4][: TRIALS + 1]

STRAIGHT = """
import sys, time, json
from taskrecipe import train
spec, out, updates = sys.argv[1:]
times = []
for number, rate in enumerate({rates}):
    start = time.time()
    settings = {{"train.learning_rate": rate, "train.updates": int(updates)}}
    train(spec, set=settings, out=f"{{out}}/{{number}}", quiet=True)
    times.append(time.time() - start)
print(json.dumps(times))
"""


def _ends(folder: Path) -> list[float]:
    """When each trial has written its last line."""
    logs = [path.read_text().splitlines() for path in sorted(folder.glob("trial-*/log.jsonl"))]
    return sorted(json.loads(lines[-1])["time"] for lines in logs)


def test_a_trial_against_the_same_run_in_a_process_that_is_warm(tmp_path: Path) -> None:
    space = f'\n[sweep.space]\n"train.learning_rate" = {json.dumps(RATES)}\n[train]\nupdates = {UPDATES}\n'
    spec = write_sweep(
        tmp_path / "task", space=space + "[evaluate]\nevery = 100\n[checkpoint]\nevery = 100\n", sampler="grid"
    )
    rounds = iter(range(100))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def straight() -> float:
        out = tmp_path / f"straight-{next(rounds)}"
        plain = tmp_path / "task" / "plain.toml"
        plain.write_text('extends = "spec.toml"\n[evaluate]\nevery = 100\n[checkpoint]\nevery = 100\n')
        command = [sys.executable, "-c", STRAIGHT.format(rates=RATES), str(plain), str(out), str(UPDATES)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return float(min(json.loads(done.stdout)[1:]))  # the first one pays for the imports

    def swept() -> float:
        out = tmp_path / f"sweep-{next(rounds)}"
        command = [sys.executable, "-m", "taskrecipe", "sweep", str(spec), "--out", str(out), "--quiet"]
        subprocess.run([*command, "--set", f"sweep.trials={TRIALS + 1}"], env=environment, check=True)
        ends = _ends(out)
        return min(later - earlier for earlier, later in pairwise(ends))  # the first one warms the cache

    contenders = {"the run itself": straight, "a trial of a sweep": swept}
    ratios = compare(contenders, 2, f"the fastest run of {UPDATES} updates, after the first")
    assert ratios["a trial of a sweep"] < 1.1  # the goal is 1.05, which a busy machine can miss


def test_halving_against_full_trials(tmp_path: Path) -> None:
    settings = {"trials": 20, "sampler": "random"}
    text = "[train]\nupdates = 90\n[evaluate]\nevery = 10\n[checkpoint]\nevery = 30\n"
    seconds: dict[str, float] = {}
    updates: dict[str, int] = {}
    for pruner in ("none", "halving"):
        spec = write_sweep(tmp_path / pruner, text, pruner=pruner, **settings)
        out, start = tmp_path / f"{pruner}-out", time.perf_counter()
        command = [sys.executable, "-m", "taskrecipe", "sweep", str(spec), "--out", str(out), "--quiet"]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        seconds[pruner] = time.perf_counter() - start
        found = json.loads((out / "sweep.json").read_text())
        updates[pruner] = sum(run["updates"] for trial in found["trials"] for run in trial["runs"])
    print(f"\n20 trials: halving takes {updates['halving'] / updates['none']:.2f} of the updates", end="")
    print(f" and {seconds['halving'] / seconds['none']:.2f} of the time of full trials")
    assert updates["halving"] < 0.3 * updates["none"]
    assert seconds["halving"] < 0.8 * seconds["none"]
