"""kill -9 at any moment loses at most the work since the last commit, and the run goes on to the same bits."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import bits, log, results, resume, train, write_spec


@pytest.mark.parametrize("trials", [3, pytest.param(50, marks=pytest.mark.chaos)])
def test_killed_at_random_moments_a_run_ends_in_the_same_bits(trials: int, zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    start = time.monotonic()
    reference = train(zygote, spec, "reference")
    whole = time.monotonic() - start
    expected, chance = bits(zygote, reference), random.Random(trials)
    for trial in range(trials):
        folder = tmp_path / f"trial-{trial}"
        kills, done = 0, zygote.start("run", str(spec), "--out", str(folder), cwd=tmp_path)
        while True:
            time.sleep(chance.uniform(0.0, whole * 0.7))
            done.send(signal.SIGKILL)
            if done.wait() == 0:
                break
            assert done.code == -signal.SIGKILL, done.stderr
            kills += 1
            again = ["resume", str(folder)] if (folder / "spec.toml").exists() else None
            if kills >= 6:  # enough is enough: let it end
                done = (
                    resume(zygote, folder)
                    if again
                    else zygote.run("run", str(spec), "--out", str(folder), cwd=tmp_path)
                )
                assert done.code == 0, done.stderr
                break
            done = zygote.start(*(again or ["run", str(spec), "--out", str(folder)]), cwd=tmp_path)
        assert bits(zygote, folder) == expected
        assert (folder / "checkpoints" / "best").read_text() == (reference / "checkpoints" / "best").read_text()
        assert results(folder)["final"] == results(reference)["final"]
        assert [line["step"] for line in log(folder, "update")] == list(range(1, 10))
