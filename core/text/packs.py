"""Several rows of a micro-batch in one line of tokens, without padding between them.

Positions restart at every row and attention stays within a row, so a row gets the loss and the gradients that it gets
alone; only the number of padding tokens is smaller. Which rows are in which pack changes no result. So packs are made
when a batch is collated: order, accumulation and resuming stay as they are without packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.errors import UsageError
from taskrecipe.recipe import IGNORED, Batch, Row
from taskrecipe.text.packing import Array, pack_lengths

if TYPE_CHECKING:
    import torch

MEMBERS = "members"
"""The key of a batch that holds for each token the number of its row in the micro-batch; -1 is padding."""


def pack_rows(rows: Sequence[Row], capacity: int, pad_id: int) -> Batch:
    """Make a batch of as few packs of up to `capacity` tokens as possible. A longer row is a pack of its own.

    Rows have `input_ids` and `labels`. The label of a row's first token is ignored: nothing is before it.
    """
    import torch

    lengths = np.array([len(row["input_ids"]) for row in rows])
    packs = _spread_evenly(lengths, pack_lengths(lengths, capacity))
    shape = len(packs), max(int(lengths[members].sum()) for members in packs)
    fills = {"input_ids": pad_id, "labels": IGNORED, "position_ids": 0, MEMBERS: -1}
    made = {name: np.full(shape, fill, dtype=np.int64) for name, fill in fills.items()}
    for pack, members in enumerate(packs):
        start = 0
        for member in members:
            end = start + int(lengths[member])
            made["input_ids"][pack, start:end] = rows[member]["input_ids"]
            made["labels"][pack, start + 1 : end] = rows[member]["labels"][1:]
            made["position_ids"][pack, start:end] = np.arange(end - start)
            made[MEMBERS][pack, start:end] = member
            start = end
    return {name: torch.from_numpy(values) for name, values in made.items()}


def _spread_evenly(lengths: Array, packs: list[list[int]]) -> list[list[int]]:
    """Return as many packs that are more alike in length, if there are such: then the longest one is shorter."""
    spread: list[list[int]] = [[] for _ in packs]
    loads = [0] * len(packs)
    for member in np.argsort(-lengths, kind="stable").tolist():
        emptiest = loads.index(min(loads))
        spread[emptiest].append(member)
        loads[emptiest] += int(lengths[member])
    longest = max(int(lengths[members].sum()) for members in packs)
    return spread if max(loads) < longest else packs


def select_inputs(batch: Batch) -> dict[str, Any]:
    """Return what a causal model takes of a batch."""
    names = ("input_ids", "attention_mask", "position_ids")
    # With a cache, packed rows see one another.
    return {**{name: batch[name] for name in names if name in batch}, "use_cache": False}


def sum_by_row(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the sum of the tokens' values over each row of a batch, packed or not."""
    if MEMBERS not in batch:
        return values.sum(-1)
    members = batch[MEMBERS]
    inside = members >= 0
    return values.new_zeros(int(members.max()) + 1).index_add(0, members[inside], values[inside])


def use_packs(batch: Batch) -> AbstractContextManager[None]:
    """Let dropout follow the rows in the packs of a batch; without packs, it does anyway."""
    if MEMBERS not in batch:
        return nullcontext()
    from taskrecipe.training.dropout import use_members

    return use_members(batch[MEMBERS].clamp(min=0), batch["position_ids"])


def require_packs(model: Any, key: str, capacity: int) -> None:
    """Raise unless the model gives a packed row the outputs that it gives the row alone. It is tried on the model."""
    config = model.config.get_text_config()
    chunk = getattr(config, "attention_chunk_size", None)
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in rope.values() if isinstance(one, dict)]
    kinds = {str(one.get("rope_type")) for one in [rope, *nested]}
    if chunk and chunk < capacity:
        why = f"attends in chunks of {chunk} tokens, whatever row they are of"
    elif changing := kinds & {"dynamic", "longrope"}:
        why = f"changes its positions by the longest row of a batch ({', '.join(sorted(changing))})"
    elif not keeps_rows_apart(model):
        why = "attends from one packed row to another, or numbers positions by itself"
    else:
        return
    raise UsageError(
        f"{key}: a {model.config.model_type} model {why}, so a packed row would not be what it is alone; "
        "turn packing off, or use another architecture (gpt2, llama, qwen2, mistral, gemma …)"
    )


def keeps_rows_apart(model: Any) -> bool:
    """Return whether a row in a pack gets the outputs that it gets alone, whatever is before it."""
    import torch

    first, other, last = [1, 2, 3, 4], [4, 3, 2, 1], [5, 6, 7, 8]
    packs = torch.tensor([first + last, other + last], device=model.device)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]], device=model.device).expand_as(packs)
    training = model.training
    try:
        with torch.no_grad():
            packed = model.eval()(input_ids=packs, position_ids=positions, use_cache=False).logits
            alone = model(input_ids=packs[:1, 4:], use_cache=False).logits[0]
    except (TypeError, RuntimeError, ValueError):  # it takes no positions
        return False
    finally:
        model.train(training)
    size = float(alone.abs().max()) + 1e-6
    same = float((packed[0, 4:] - alone).abs().max()) <= 1e-3 * size
    return same and torch.equal(packed[0, 4:], packed[1, 4:])
