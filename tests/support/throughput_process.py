"""Two processes that train a GPT-2 of four layers in turn, an update by the loop and an update by plain torch."""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from datasets import Dataset
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

from taskrecipe.plugins.optimizers import parameter_groups
from taskrecipe.recipe import Recipe
from taskrecipe.training.events import Updated
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.toyruns import toy_spec

LENGTH, BATCH = 128, 8


class Causal(Recipe):
    """A language model whose rows are tokens."""

    def collate(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        tokens = torch.tensor([row["input_ids"] for row in rows])
        return {"input_ids": tokens, "labels": tokens}


def make_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=2000, n_positions=LENGTH, **rates))


def run_plain(spec: Any, model: torch.nn.Module, batches: list[Any], **options: Any) -> Iterator[int]:
    """The loop that everybody writes: torch's wrapper, one batch an update."""
    wrapped = DistributedDataParallel(model, **options)
    optimizer = torch.optim.AdamW(parameter_groups(model, spec.optimizer), lr=1e-3, fused=True)
    for number, batch in enumerate(batches, 1):
        wrapped(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield number


def main() -> None:
    updates = int(sys.argv[1])
    spec = toy_spec(
        train={"updates": updates, "batch_size": BATCH, "learning_rate": 1e-3},
        log={"every": 10},
        evaluate={"best": "loss", "every": "end"},
    )
    accelerator, start = make_accelerator(spec), make_model()
    tokens = torch.randint(2000, (updates * BATCH, LENGTH)).tolist()
    rows = Dataset.from_dict({"input_ids": tokens})
    loop = make_loop(Causal(spec), copy.deepcopy(start), {"train": rows, "validation": rows}, accelerator)
    loop.evaluations = []
    plain = make_loop(Causal(spec), copy.deepcopy(start), {"train": rows, "validation": rows}, accelerator)
    batches = [update.batches[0].inputs for update in plain.state.updates(0)]
    running = {
        "plain DDP": run_plain(spec, copy.deepcopy(start), batches),
        "plain DDP, looking for unused weights": run_plain(
            spec, copy.deepcopy(start), batches, find_unused_parameters=True
        ),
        "recipe": (event for event in loop.run() if isinstance(event, Updated)),
    }
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(updates - 1):
        for name, steps in running.items():
            distributed.barrier()
            begin = time.perf_counter()
            next(steps)
            distributed.barrier()
            times[name].append(time.perf_counter() - begin)
    if accelerator.is_main_process:
        print(json.dumps({name: statistics.median(found[2:]) for name, found in times.items()}))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
