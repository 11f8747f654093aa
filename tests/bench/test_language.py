"""What packing saves on rows of very unequal length, and what the loss in chunks costs and saves."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.sidebyside import compare
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from taskrecipe.recipe import IGNORED
from taskrecipe.text.packs import pack_rows
from taskrecipe.text.projection import compute_losses, find_projection, next_tokens, run_model

pytestmark = [pytest.mark.bench, pytest.mark.filterwarnings("default")]

CAPACITY, ROWS = 512, 32


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for a core would count as work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_llama(vocabulary: int = 2000, hidden: int = 256, layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def chat_like_rows() -> list[dict[str, Any]]:
    """Rows whose lengths are log-normal: padded to the longest, about 31 % of all tokens are real."""
    random = np.random.default_rng(0)
    lengths = np.clip(np.round(np.exp(random.normal(4.5, 0.95, ROWS))), 8, CAPACITY).astype(int)
    rows = [{"input_ids": random.integers(5, 2000, length).tolist()} for length in lengths]
    print(f"\nreal tokens of a padded batch: {lengths.sum() / (ROWS * lengths.max()):.0%}")
    return [{**row, "labels": row["input_ids"]} for row in rows]


def pad(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    ids, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), IGNORED)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[number, :length] = labels[number, :length] = torch.tensor(row["input_ids"])
        mask[number, :length] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def test_packs_against_padding() -> None:
    """Goal: at least twice the rows per second."""
    rows, model = chat_like_rows(), tiny_llama()
    projection = find_projection(model)

    def update(collate: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]) -> float:
        start = time.process_time()
        batch = collate(rows)
        labels = next_tokens(batch)
        inputs = {key: batch[key] for key in ("input_ids", "position_ids", "attention_mask") if key in batch}
        compute = partial(compute_losses, labels=labels, correct=False)
        run_model(model, {**inputs, "use_cache": False}, projection, compute).total.backward()
        model.zero_grad()
        return time.process_time() - start

    packs = partial(pack_rows, capacity=CAPACITY, pad_id=0)
    ratios = compare(
        {"padded": lambda: update(pad), "packed": lambda: update(packs)}, 5, "Time of an update of 32 chat-like rows"
    )
    assert ratios["packed"] < 0.5


VOCABULARY, HIDDEN, TOKENS = 50_000, 256, 2048


def loss_of_all_logits(head: torch.nn.Linear, hidden: torch.Tensor, labels: torch.Tensor) -> None:
    cross_entropy(head(hidden), labels, reduction="sum").backward()


def loss_in_chunks(head: torch.nn.Linear, hidden: torch.Tensor, labels: torch.Tensor) -> None:
    from taskrecipe.text.projection import Projection

    compute_losses(Projection(head), hidden, labels, correct=False).total.backward()


def projection_inputs() -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    return head, torch.randn(TOKENS, HIDDEN, requires_grad=True), torch.randint(VOCABULARY, (TOKENS,))


def peak_megabytes(compute: Callable[..., None], queue: Any) -> None:
    inputs = projection_inputs()
    before = highest_memory()
    compute(*inputs)
    queue.put(highest_memory() - before)


def highest_memory() -> float:
    """The most memory that this process has had so far, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure_peak(compute: Callable[..., None]) -> float:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=peak_megabytes, args=(compute, queue))
    process.start()
    found: float = queue.get()
    process.join()
    return found


def test_loss_in_chunks_against_all_logits() -> None:
    """Goal: at most 1.05 times the time, and half of the peak memory, at a vocabulary of 50,000."""
    head, hidden, labels = projection_inputs()

    def timed(compute: Callable[..., None]) -> float:
        start = time.process_time()
        compute(head, hidden, labels)
        head.zero_grad()
        hidden.grad = None
        return time.process_time() - start

    ratios = compare(
        {"all logits": partial(timed, loss_of_all_logits), "in chunks": partial(timed, loss_in_chunks)},
        5,
        f"Forward and backward of the loss, {TOKENS} tokens, vocabulary {VOCABULARY}",
    )
    whole, chunks = measure_peak(loss_of_all_logits), measure_peak(loss_in_chunks)
    print(f"  peak memory: {whole:.0f} MB, {chunks:.0f} MB in chunks ({chunks / whole:.2f})")
    assert ratios["in chunks"] <= 1.05
    assert chunks <= 0.5 * whole
