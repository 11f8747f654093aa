"""The gradients of models with dropout, in one process or in each of several."""

from __future__ import annotations

import json

import torch

from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.dropouts import gradients, switch_on
from tests.support.textruns import ready, text_spec
from tests.support.toyruns import toy_spec
from tests.support.toys import Tag, tag_rows

CASES = ("toy", "glue")


def toy_gradients(accumulate: int) -> list[float]:
    spec = toy_spec(train={"accumulate": accumulate}, task={"dropout": 0.3}, launch={"device": "cpu"})
    recipe = Tag(spec)
    torch.manual_seed(0)
    module = recipe.load_model(None).double()
    splits = {"train": tag_rows(37), "validation": tag_rows(2)}
    return _flatten(make_loop(recipe, module, splits, make_accelerator(spec)))


def glue_gradients(accumulate: int) -> list[float]:
    train = {"accumulate": accumulate, "batch_size": 8}
    run = ready(text_spec("glue", {"name": "mrpc"}, train=train, launch={"device": "cpu"}), rows=16)
    torch.manual_seed(0)
    module = run.recipe.load_model(run.source).double()
    switch_on(module)
    return _flatten(make_loop(run.recipe, module, run.rows, make_accelerator(run.recipe.spec)))


def _flatten(loop) -> list[float]:
    loop.model.train()
    return torch.cat([gradient.flatten() for gradient in gradients(loop, 1).values()]).tolist()


def all_gradients() -> dict[str, list[float]]:
    """Of the second update, whole and in two micro-batches a process."""
    makers = {"toy": toy_gradients, "glue": glue_gradients}
    return {f"{case} in {parts}": makers[case](parts) for case in CASES for parts in (1, 2)}


if __name__ == "__main__":
    found = all_gradients()
    if torch.distributed.get_rank() == 0:
        print(json.dumps(found))
    torch.distributed.destroy_process_group()
