"""Updates of the toy recipe in each of several processes, of which one has too little memory."""

from __future__ import annotations

import json
from typing import Any

import torch

from taskrecipe.training.exchange import gather_values
from taskrecipe.training.setup import make_accelerator, make_loop
from tests.support.toyruns import toy_spec
from tests.support.toys import Tag, tag_rows


class Short(Tag):
    """Runs out of memory above two rows, in the last process only."""

    def forward(self, model: Any, batch: Any) -> Any:
        rank, size = torch.distributed.get_rank(), len(batch["input_ids"])
        if model.training and rank == 1 and size > 2:
            raise torch.OutOfMemoryError(f"no memory for {size} rows")
        return super().forward(model, batch)


def train(recipe: type[Tag], accumulate: Any) -> dict[str, Any]:
    """The weights after an epoch, and how updates were cut in each process."""
    spec = toy_spec(
        task={"dropout": 0.3}, train={"accumulate": accumulate, "batch_size": 16, "epochs": 1}, launch={"device": "cpu"}
    )
    torch.manual_seed(0)
    made = recipe(spec)
    splits = {"train": tag_rows(37), "validation": tag_rows(9)}
    loop = make_loop(made, made.load_model(None), splits, make_accelerator(spec))
    events = [type(event).__name__ for event in loop.run()]
    weights = torch.cat([parameter.flatten() for parameter in loop.state.module.parameters()])
    return {
        "weights": weights.tolist(),
        "parts": gather_values(loop.state.updates.cut.parts),
        "warnings": events.count("Warned"),
    }


if __name__ == "__main__":
    result = {"fixed": train(Tag, 4), "auto": train(Short, "auto"), "roomy": train(Tag, "auto"), "whole": train(Tag, 1)}
    if torch.distributed.get_rank() == 0:
        print(json.dumps(result))
    torch.distributed.destroy_process_group()
