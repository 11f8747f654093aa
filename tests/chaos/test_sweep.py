"""A storm of kills over a sweep: it ends with the same trials, the same best and the same bits."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support import sweeps
from tests.support.commands import Started, Zygote

pytestmark = pytest.mark.chaos

SETTINGS = {"trials": 12, "sampler": "tpe", "pruner": "halving", "parallel": 2}


def _start(zygote: Zygote, spec: Path, out: Path) -> Started:
    return zygote.start("sweep", str(spec), "--out", str(out), "--sample", *_SHORT, cwd=spec.parent)


_SHORT = [word for one in ("train.updates=18", "evaluate.every=3", "checkpoint.every=2") for word in ("--set", one)]


@pytest.mark.parametrize("sweepers", [1, 2])
def test_a_storm_of_kills_ends_with_the_same_best_trial_by_trial(zygote: Zygote, tmp_path: Path, sweepers: int) -> None:
    spec = sweeps.write_sweep(tmp_path / "task", **SETTINGS)
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    assert _start(zygote, spec, calm).wait(900) == 0
    dice, kills = random.Random(sweepers), {"sweeper": 0, "trial": 0}
    killed: Counter[str] = Counter()
    running = [_start(zygote, spec, stormy) for _ in range(sweepers)]
    end = time.monotonic() + 1500
    while not any(one.poll() == 0 for one in running):
        assert time.monotonic() < end
        time.sleep(dice.uniform(0.3, 2.5))
        # A run whose process dies three times at the same update counts as failed, as it should.
        victims = {name: pid for name, pid in sorted(sweeps.holders(stormy).items()) if killed[name] < 2}
        if victims and kills["trial"] <= kills["sweeper"]:
            name = dice.choice(list(victims))
            sweeps.kill(victims[name])
            kills["trial"] += 1
            killed[name] += 1
        elif kills["sweeper"] < 10:
            sweeps.kill(dice.choice(running).pid)
            kills["sweeper"] += 1
        codes = [one.poll() for one in running]
        assert all(code in (None, 0, -9) for code in codes), [one.stderr[-2000:] for one in running]
        running = [
            _start(zygote, spec, stormy) if code == -9 else one for one, code in zip(running, codes, strict=True)
        ]
    for one in running:
        assert one.wait(300) == 0
    print(f"{kills['sweeper']} kills of a sweeper, {kills['trial']} of a trial")
    assert min(kills.values()) >= 3
    assert sweeps.describe(stormy) == sweeps.describe(calm)
    assert sweeps.fingerprints(zygote, stormy) == sweeps.fingerprints(zygote, calm)
