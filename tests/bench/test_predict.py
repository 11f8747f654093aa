"""What predicting costs beyond the arithmetic, what sorting by length gives, and how fast the command starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.runs import GLUE, write_task
from tests.support.sidebyside import compare

from taskrecipe import Run, train
from taskrecipe.use.predict import Plan
from taskrecipe.use.predictor import Predictor
from taskrecipe.use.records import as_records

pytestmark = [pytest.mark.bench, pytest.mark.filterwarnings("default")]

BATCH = 32
ROWS = 384

Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small BERT: 4 layers of 256, which has the shape of those in use."""
    folder = tmp_path_factory.mktemp("bench")
    write_task(folder)
    config = json.loads((folder / "model" / "config.json").read_text())
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "max_position_embeddings": 512}
    (folder / "model" / "config.json").write_text(json.dumps({**config, **sizes}))
    tokenizer = folder / "model" / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "model_max_length": 512}))
    (folder / "spec.toml").write_text(GLUE.replace('name = "mrpc"', 'name = "mrpc"\nmax_length = 256'))
    settings = {"train.updates": 1, "train.batch_size": BATCH, "evaluate.every": 1}
    return train(folder / "spec.toml", set=settings, out=folder / "run", quiet=True)


def rows_of(lengths: np.ndarray[Any, Any]) -> Rows:
    """Pairs of texts; each text has so many words."""
    from taskrecipe.text.sample_text import WORDS

    random = np.random.default_rng(1)
    return [
        {f"sentence{side}": " ".join(map(str, random.choice(WORDS, n))) for side, n in ((1, n), (2, n))}
        for n in lengths.clip(2, 120)
    ]


def mrpc_like() -> Rows:
    return rows_of(np.random.default_rng(2).normal(22, 6, ROWS).astype(int))


def log_normal() -> Rows:
    return rows_of(np.random.default_rng(3).lognormal(np.log(12), 0.9, ROWS).astype(int))


def bare_loop(run: Run, rows: Rows) -> Callable[[], float]:
    """What one would write by hand: tokenize, sort by length, pad, run the model."""
    trained = run.load()
    tokenizer, model = trained.recipe.processor, trained.module

    def measure() -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            tokens = tokenizer(
                [row["sentence1"] for row in rows], [row["sentence2"] for row in rows], truncation=True, max_length=256
            )
            order = np.argsort([-len(ids) for ids in tokens["input_ids"]], kind="stable")
            found: list[Any] = [None] * len(rows)
            for first in range(0, len(rows), BATCH):
                chosen = order[first : first + BATCH]
                batch = tokenizer.pad(
                    {name: [values[i] for i in chosen] for name, values in tokens.items()}, return_tensors="pt"
                )
                for place, probabilities in zip(chosen, model(**batch).logits.softmax(-1).tolist(), strict=True):
                    found[place] = probabilities
        return time.perf_counter() - start

    return measure


def our_way(run: Run, rows: Rows) -> Callable[[], float]:
    trained = run.load()

    def measure() -> float:
        with trained.on_device() as (accelerator, model):
            predictor = Predictor(trained.recipe, model, accelerator, Plan(run.folder).wanted())
            start = time.perf_counter()
            assert all(outcome.answer for outcome in predictor.predict(list(as_records(rows))))
            return time.perf_counter() - start

    return measure


def pipeline_way(run: Run, rows: Rows) -> Callable[[], float]:
    from transformers import pipeline

    pipe: Any = pipeline("text-classification", model=str(run.folder / "model"), device="cpu", top_k=None)
    pairs = [{"text": row["sentence1"], "text_pair": row["sentence2"]} for row in rows]

    def measure() -> float:
        start = time.perf_counter()
        assert len(pipe(pairs, batch_size=BATCH, truncation=True, max_length=256)) == len(rows)
        return time.perf_counter() - start

    return measure


def test_predicting_costs_what_the_arithmetic_costs(run: Run) -> None:
    rows = mrpc_like()
    contenders = {"bare loop": bare_loop(run, rows), "taskrecipe": our_way(run, rows)}
    assert compare(contenders, 7, "one row, pairs as in MRPC")["taskrecipe"] <= 1.1


@pytest.mark.parametrize(("make", "least"), [(mrpc_like, 1.4), (log_normal, 2.0)])
def test_predicting_beats_the_pipeline(run: Run, make: Callable[[], Rows], least: float) -> None:
    rows = make()
    contenders = {"taskrecipe": our_way(run, rows), "transformers.pipeline": pipeline_way(run, rows)}
    assert compare(contenders, 3, f"{make.__name__}, batches of {BATCH}")["transformers.pipeline"] >= least


BY_HAND = """
import sys, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
with torch.inference_mode():
    print(model(**tokenizer("a text", "another", return_tensors="pt")).logits.softmax(-1).tolist())
"""


def test_one_row_starts_as_fast_as_by_hand(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps({"sentence1": "a text", "sentence2": "another"}) + "\n")
    commands = {
        "by hand": [sys.executable, "-c", BY_HAND, str(run.folder / "model")],
        "recipe predict": [sys.executable, "-m", "taskrecipe", "predict", str(run.folder), str(tmp_path / "one.jsonl")],
    }

    def start(command: list[str]) -> float:
        begun = time.perf_counter()
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return time.perf_counter() - begun

    contenders = {name: lambda command=command: start(command) for name, command in commands.items()}
    assert compare(contenders, 3, "one row, from the shell")["recipe predict"] <= 1.3
