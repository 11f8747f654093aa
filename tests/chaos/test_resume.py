"""A run that goes on from any of its checkpoints ends in the very bits of the run that never stopped."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import GLUE, bits, copy_as_of, log, results, resume, steps, train, write_spec

GRID = list(product([0, 2], [0.0, 0.3], [1, 2, 3]))
SHORT = [(0, 0.3, 2)]


def cells() -> list[object]:
    return [
        pytest.param(
            *cell,
            marks=[] if cell in SHORT else [pytest.mark.chaos],
            id="workers {} dropout {} accumulate {}".format(*cell),
        )
        for cell in GRID
    ]


@pytest.mark.parametrize(("workers", "dropout", "accumulate"), cells())
def test_resume_is_exact_from_every_update(
    workers: int, dropout: float, accumulate: int, zygote: Zygote, tmp_path: Path
) -> None:
    text = GLUE.replace("keep = 2", "keep = 100").replace("batch_size = 8", "batch_size = 6")
    spec = write_spec(tmp_path, text, dropout)
    options = [
        "--set", f"data.workers={workers}",
        "--set", f"train.accumulate={accumulate}",
    ]  # fmt: skip
    whole = train(zygote, spec, "whole", *options)
    expected = bits(zygote, whole)
    assert steps(whole) == list(range(1, 10))
    for step in range(1, 10, 4 if (workers, dropout, accumulate) in SHORT else 1):
        part = copy_as_of(whole, step, tmp_path / f"from-{step}")
        done = resume(zygote, part)
        assert done.code == 0, done.stderr
        assert bits(zygote, part) == expected
        assert results(part)["best"] == results(whole)["best"]
        assert set(results(part)["timings"]) == {"loading", "training", "evaluation", "saving", "conclusion"}
        assert [line["loss"] for line in log(part, "update")] == [line["loss"] for line in log(whole, "update")]


def test_the_average_of_the_weights_is_resumed(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GLUE.replace("keep = 2", "keep = 100"))
    whole = train(zygote, spec, "whole", "--set", "train.ema=0.9")
    part = copy_as_of(whole, 4, tmp_path / "part")
    assert resume(zygote, part).code == 0
    for file in ("checkpoints/step-9/ema.safetensors", "model/model.safetensors"):
        assert (part / file).read_bytes() == (whole / file).read_bytes()
