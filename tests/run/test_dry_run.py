"""`recipe run --dry` tells what the run itself then does and costs."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import GLUE, log, results, train, write_spec
from transformers import AutoTokenizer

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def plan(zygote: Zygote, spec: Path, *options: str) -> dict[str, str]:
    done = zygote.run("run", str(spec), "--dry", *options, cwd=spec.parent)
    assert done.code == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines)


def amount(text: str) -> float:
    number, unit = text.split()[:2]
    return float(number) * UNITS[unit]


def test_the_plan_is_what_then_happens(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GLUE.replace("updates = 9", "epochs = 2"))
    options = ("--set", "schedule.warmup=0.25", "--set", "train.ema=0.9", "--set", "checkpoint.keep=3")
    before = sorted(tmp_path.iterdir())
    told = plan(zygote, spec, *options)
    assert sorted(tmp_path.iterdir()) == before  # nothing is left behind
    folder = train(zygote, spec, "run", *options)
    assert told["rows"] == "train 60, validation 21"
    assert told["updates"] == f"{results(folder)['updates']} (8 an epoch)"
    assert told["warmup"] == "4 updates"
    assert told["best by"] == "f1 (max)"
    assert told["parameters"] == f"{results(folder)['parameters']:,} trained of {results(folder)['parameters']:,}"
    saved = log(folder, "save")[-1]["bytes"]
    assert amount(told["checkpoint"]) == pytest.approx(saved, rel=0.15)  # headers and the manifest, of a tiny model
    most = amount(told["checkpoint"].split("each, ")[1])
    assert most == pytest.approx(5 * amount(told["checkpoint"]), rel=0.05)
    assert float(told["an update"].split()[0]) > 0
    assert told["training"].startswith("about ")


def test_tokens_are_those_of_an_epoch(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    with (tmp_path / "train.csv").open() as file:
        tokens = [len(tokenizer(row["sentence1"], row["sentence2"])["input_ids"]) for row in csv.DictReader(file)]
    assert plan(zygote, spec)["tokens an epoch"] == f"{sum(tokens):,}"


def test_a_plan_of_wrong_data_is_the_same_error(zygote: Zygote, tmp_path: Path) -> None:
    done = zygote.run("run", str(write_spec(tmp_path)), "--dry", "--set", "data.columns.label='labels'", cwd=tmp_path)
    assert done.code == 3
    assert "labels" in done.stderr
