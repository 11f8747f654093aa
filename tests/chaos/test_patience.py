"""Best, patience and the end they bring are the same, wherever a run was interrupted."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.support.commands import Zygote
from tests.support.runs import GLUE, bits, copy_as_of, log, results, resume, train, write_spec

PATIENT = GLUE.replace("updates = 9", "updates = 60").replace("every = 3\n", "every = 2\npatience = 4\n")


def test_patience_survives_an_interruption_after_each_evaluation(zygote: Zygote, tmp_path: Path) -> None:
    text = PATIENT.replace("keep = 2", "keep = 100").replace("[checkpoint]\nevery = 1", "[checkpoint]\nevery = 2")
    spec = write_spec(tmp_path, text)
    whole = train(zygote, spec, "whole")
    end, evaluated = results(whole), [line["step"] for line in log(whole, "evaluate")]
    assert end["updates"] < 60  # patience ended it
    assert len(evaluated) > 3
    assert end["best"]["step"] < end["updates"]
    exported = load_file(whole / "model" / "model.safetensors")
    best = load_file(whole / "checkpoints" / f"step-{end['best']['step']}" / "model.safetensors")
    assert all(torch.equal(value, best[name]) for name, value in exported.items())
    for step in evaluated[:-1]:
        part = copy_as_of(whole, step, tmp_path / f"from-{step}")
        done = resume(zygote, part)
        assert done.code == 0, done.stderr
        assert {key: results(part)[key] for key in ("updates", "best", "final")} == {
            key: end[key] for key in ("updates", "best", "final")
        }
        assert bits(zygote, part, "best") == bits(zygote, whole, "best")
