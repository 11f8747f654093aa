"""Runs for tests to do things to: short, on sample data, and what they left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.commands import Started, Zygote

GLUE = """\
spec_version = 1
recipe = "glue"
seed = 3
[task]
name = "mrpc"
[model]
name = "model"
[data.files]
train = "train.csv"
validation = "validation.csv"
[train]
updates = 9
batch_size = 8
learning_rate = 1e-3
order = "bucketed"
[evaluate]
every = 3
best = "f1"
[checkpoint]
every = 1
keep = 2
[log]
every = 1
"""

REGRESSION = GLUE.replace('name = "mrpc"', 'name = "stsb"').replace('best = "f1"', 'best = "pearson"')


def write_task(folder: Path, dropout: float = 0.1, rows: int = 60) -> None:
    """Pairs of sentences to classify, and a tiny model without weights."""
    from taskrecipe.text.sample_text import class_cues, sentence, vocabulary, write_tiny_bert

    random = np.random.default_rng(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    write_tiny_bert(folder / "model", vocabulary(), hidden_size=32, intermediate_size=32, **rates)
    for split, count in (("train", rows), ("validation", 21)):
        lines = ["sentence1,sentence2,label"]
        for number in range(count):
            second = sentence(random, class_cues(random, number % 2))
            lines.append(f"{sentence(random)},{second},{number % 2}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


def write_spec(folder: Path, text: str = GLUE, dropout: float = 0.1) -> Path:
    """A spec in `folder`, with what it names beside it."""
    write_task(folder, dropout)
    path = folder / "spec.toml"
    path.write_text(text)
    return path


def write_regression(folder: Path, label: str) -> Path:
    """A spec of a regression in `folder`, whose sixth row has the given label."""
    spec = write_spec(folder, REGRESSION)
    for split in ("train", "validation"):
        lines = (folder / f"{split}.csv").read_text().splitlines()
        (folder / f"{split}.csv").write_text("\n".join([lines[0], *(f"{line}.5" for line in lines[1:])]) + "\n")
    train = (folder / "train.csv").read_text().splitlines()
    train[6] = train[6].rsplit(",", 1)[0] + f",{label}"
    (folder / "train.csv").write_text("\n".join(train) + "\n")
    return spec


def train(zygote: Zygote, spec: Path, out: str = "run", *options: str, **env: str) -> Path:
    """Run a spec to its end; the run's folder."""
    folder = spec.parent / out
    done = zygote.run("run", str(spec), "--out", str(folder), *options, cwd=spec.parent, **env)
    assert done.code == 0, done.stderr
    return folder


def resume(zygote: Zygote, folder: Path, *options: str, **env: str) -> Started:
    return zygote.run("resume", str(folder), *options, cwd=folder.parent, **env)


def bits(zygote: Zygote, folder: Path, at: str = "last") -> str:
    """The fingerprint of a checkpoint's weights and optimizer."""
    done = zygote.run("fingerprint", str(folder), "--at", at, cwd=folder.parent)
    assert done.code == 0, done.stderr
    return done.stdout.strip()


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def log(folder: Path, event: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if event is None or line["event"] == event]


def steps(folder: Path) -> list[int]:
    """The steps that there are checkpoints of."""
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


def copy_as_of(folder: Path, step: int, target: Path) -> Path:
    """A copy of a run as it was just after `step` was saved."""
    shutil.copytree(folder, target)
    for path in (target / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    for name in ("results.json",):
        (target / name).unlink(missing_ok=True)
    return target
