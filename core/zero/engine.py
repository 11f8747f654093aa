"""DeepSpeed's engine around our module and optimizer.

The engine divides the optimizer's state (ZeRO 1), gradients too (ZeRO 2), and weights too (ZeRO 3). Everything else is
the loop's as with any other engine: it says which micro-batch is the last one, limits the norm, sets the learning rate
and decides whether a step is taken. The engine gets its configuration from the spec, and reads no file.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

import torch
from accelerate import Accelerator

from taskrecipe.errors import UsageError
from taskrecipe.spec.deepspeed import STAGES
from taskrecipe.spec.spec import Spec
from taskrecipe.system.library_output import quiet_imports
from taskrecipe.training.state import OptimizerGroups
from taskrecipe.zero.optimizer import EngineOptimizer

UNUSED_OP = "deepspeed_shm_comm"
"""Shared memory between processes on CPUs, for inference. DeepSpeed compiles it at the first start, for minutes; if a
process is killed meanwhile, a lock is left on which all later ones wait. Nothing here needs it."""

OLD_NAMES = r"`torch\.distributed\.(all_gather_into|reduce_scatter)_tensor` is deprecated"
"""What torch says, in every process and again and again, of functions that DeepSpeed calls."""


def make_engine(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, spec: Spec, accelerator: Accelerator
) -> tuple[Any, EngineOptimizer]:
    """Let DeepSpeed divide a module and its optimizer among the processes. All of them must call this together."""
    members = OptimizerGroups(optimizer, module).member_names()
    warnings.filterwarnings("ignore", OLD_NAMES, FutureWarning)
    with _quiet_deepspeed():
        import deepspeed

        if accelerator.device.type == "cpu":
            _stay_on_cpu(deepspeed)
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=optimizer,
            config=make_config(spec, accelerator.num_processes),
            dist_init_required=False,
        )
    engine.set_gradient_accumulation_boundary(True)
    return engine, EngineOptimizer(engine, members)


def make_config(spec: Spec, processes: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration: all of it comes from the spec."""
    accumulate = spec.train.first_accumulate
    rows = spec.train.batch_size // (processes * accumulate)
    given = spec.launch.deepspeed.train_micro_batch_size_per_gpu if spec.launch.deepspeed else "auto"
    if given not in ("auto", rows):  # a spec does not know how many processes a launcher starts
        raise UsageError(
            f"[launch.deepspeed].train_micro_batch_size_per_gpu is {given}, but [train].batch_size = "
            f"{spec.train.batch_size} on {processes} processes with accumulate = {accumulate} makes it {rows}"
        )
    return {
        "train_batch_size": spec.train.batch_size,
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": accumulate,
        "zero_optimization": {**spec.launch.zero_settings, "stage": STAGES[spec.launch.shard]},
        # The optimizer is the spec's, a torch one. DeepSpeed would compile its own.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _stay_on_cpu(deepspeed: Any) -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    if deepspeed.accelerator.get_accelerator().device_name() != "cpu":  # it has found one that the spec doesn't use
        deepspeed.accelerator.set_accelerator(CPU_Accelerator())
    deepspeed.ops.__compatible_ops__[UNUSED_OP] = False


@contextmanager
def _quiet_deepspeed() -> Iterator[None]:
    """Keep DeepSpeed's own log and prints out of the console. Errors are raised, and so reported as any other."""
    with quiet_imports(), redirect_stdout(StringIO()):
        yield
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
