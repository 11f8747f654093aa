"""What dropout costs in a fine-tune on this CPU: by row against torch's own."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from tests.support.sidebyside import compare, in_step
from tests.support.toyruns import toy_spec
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from taskrecipe.recipe import Recipe
from taskrecipe.training.dropout import RowDropout
from taskrecipe.training.events import Updated
from taskrecipe.training.setup import make_loop

pytestmark = [pytest.mark.bench, pytest.mark.filterwarnings("default")]

BATCH, UPDATES, LENGTH, HIDDEN = 32, 6, 53, 384


class Classifier(Recipe):
    def load_model(self, source):
        raise NotImplementedError


def mini_lm() -> BertForSequenceClassification:
    """A model of MiniLM's shape, with the dropout that BERT models are fine-tuned with."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=2000,
            hidden_size=HIDDEN,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=4 * HIDDEN,
        )
    )


def rows(count: int) -> Dataset:
    random = np.random.default_rng(0)
    return Dataset.from_dict(
        {
            "input_ids": [random.integers(5, 2000, LENGTH).tolist() for _ in range(count)],
            "attention_mask": [[1] * LENGTH] * count,
            "labels": random.integers(0, 2, count).tolist(),
        }
    )


def test_an_update_with_dropout() -> None:
    """Goal: at most 0.92 times the time with torch's dropout."""
    start, train = mini_lm(), rows(BATCH * UPDATES)

    def updates(kind: str) -> Iterator[Updated]:
        spec = toy_spec(
            train={"epochs": 1, "batch_size": BATCH, "learning_rate": 1e-4, "dropout": kind},
            evaluate={"best": "loss", "every": "end"},
            checkpoint={"every": "end"},
        )
        loop = make_loop(Classifier(spec), copy.deepcopy(start), {"train": train, "validation": train}, _cpu())
        loop.evaluations = []
        return (event for event in loop.run() if isinstance(event, Updated))

    contenders = {"torch": lambda: updates("torch"), "by row": lambda: updates("by_row")}
    ratios = in_step(contenders, rounds=4, title="an update of a MiniLM with dropout 0.1")
    assert ratios["by row"] < 0.95


def test_a_single_dropout() -> None:
    """Goal: at most half the time of `nn.Dropout`."""
    inputs, mode = torch.randn(BATCH, LENGTH, HIDDEN), RowDropout(1, torch.device("cpu"))

    def seconds() -> float:
        begin = time.perf_counter()
        for _ in range(20):
            functional.dropout(inputs, 0.1)
        return time.perf_counter() - begin

    def by_row() -> float:
        with mode.use_rows(0, range(BATCH)), mode:
            return seconds()

    ratios = compare({"nn.Dropout": seconds, "by row": by_row}, rounds=15, title="dropout of 32 x 53 x 384 numbers")
    assert ratios["by row"] < 0.5


def _cpu() -> Accelerator:
    return Accelerator(cpu=True)
