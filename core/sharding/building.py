"""Making a sharded model: no process ever holds the whole of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from accelerate import Accelerator

from taskrecipe.sharding.deferred import DeferredWeights
from taskrecipe.sharding.filling import Places, record_weights
from taskrecipe.sharding.module import shard_module
from taskrecipe.spec.spec import Spec

Recording = Callable[[], AbstractContextManager[None]]
"""Begins to record what happens to weights instead of doing it."""


def build_sharded(
    make: Callable[[Recording], torch.nn.Module], spec: Spec, accelerator: Accelerator
) -> torch.nn.Module:
    """Make a model by `make`, whose weights are filled only after it is sharded. Each process fills its own rows.

    `make` is called again without recording if the weights can't be deferred: some models look at their weights while
    they are made.
    """
    deferred, weights = DeferredWeights(), None
    state = torch.random.get_rng_state()
    try:
        module = make(lambda: record_weights(deferred))
        deferred.require_repeatable(Places.find(module).tensors)
        weights = deferred
    except Exception as error:  # of any kind: if it is the user's mistake, the second try raises it again
        torch.random.set_rng_state(state)
        module = make(nullcontext)
        reason = str(error).strip().splitlines()
        warnings.warn(
            f"[launch].shard: each process holds the whole model while it is made, since its weights can't be made "
            f"one by one ({reason[0] if reason else type(error).__name__})",
            stacklevel=2,
        )
    shard_module(module, spec, accelerator, weights)
    return module
