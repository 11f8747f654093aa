"""What text recipes promise beyond the conformance kit, each on rows of its own sample, of unequal lengths."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.support.loops import evaluated, gradients, trained
from tests.support.textruns import Ready, ready, text_spec

from taskrecipe.spec.spec import Spec

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "glue": ("glue", {"name": "mrpc"}),
    "glue regression": ("glue", {"name": "stsb"}),
    "swag": ("swag", {}),
    "question_answering": ("question_answering", {}),
    "question_answering no_answer": ("question_answering", {"no_answer": True}),
    "token_classification": ("token_classification", {}),
    "seq2seq": ("seq2seq", {}),
    "seq2seq translation": ("seq2seq", {"metric": "bleu", "languages": {"source": "en", "target": "ne"}}),
}


def spec_of(case: str, **tables: dict[str, Any]) -> Spec:
    recipe, task = CASES[case]
    train = {"epochs": 1, "batch_size": 8, **tables.pop("train", {})}
    return text_spec(recipe, task, train=train, **tables)


@cache
def few_rows(case: str) -> Ready:
    """22 rows of a case's sample: two full updates and a short one, or more where a row has several windows."""
    return ready(spec_of(case), rows=22)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_accumulation_gives_the_gradients_of_one_batch(case, smoothing):
    def taken(accumulate, update):
        spec = spec_of(case, train={"accumulate": accumulate, "label_smoothing": smoothing})
        return gradients(few_rows(case).loop(spec), update)

    last = few_rows(case).loop().total - 1
    for update in (0, last):
        whole = taken(1, update)
        for accumulate in (2, 4):
            split = taken(accumulate, update)
            assert max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)) < 1e-12


@pytest.mark.parametrize("case", [case for case in CASES if case != "glue regression"])
def test_labels_are_smoothed_in_training_only(case):
    plain, smooth = (few_rows(case).loop(spec_of(case, train={"label_smoothing": share})) for share in (0.0, 0.2))
    batch = next(plain.state.updates(0)).batches[0].inputs

    def loss(loop, training):
        recipe, model = loop.objective.recipe, loop.model.eval()  # so that only `training` differs
        return recipe.loss(recipe.forward(model, batch), batch, training=training)["loss"].item()

    assert loss(plain, True) == loss(plain, False) == loss(smooth, False)
    assert loss(smooth, True) != loss(plain, True)


@pytest.mark.parametrize(
    ("case", "metric", "before", "after"),
    [
        ("glue", "accuracy", 0.6, 0.9),
        ("glue regression", "spearman", 0.4, 0.8),
        ("swag", "accuracy", 0.4, 0.9),
        ("question_answering", "f1", 40.0, 90.0),
        ("token_classification", "f1", 0.3, 0.9),
        ("seq2seq", "rougeL", 20.0, 80.0),
    ],
)
def test_the_sample_is_learned(case, metric, before, after):
    loop = ready(text_spec(*CASES[case])).loop(dtype=torch.float32, dropout=True)
    assert evaluated(loop)[metric] < before
    assert trained(loop)[metric] > after
