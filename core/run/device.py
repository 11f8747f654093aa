"""What a run computes on, in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.run.environment import usable_cores

if TYPE_CHECKING:
    from accelerate import Accelerator

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""What /proc/cpuinfo names processors by that compute in bf16."""


def describe_device(accelerator: Accelerator, precision: str) -> str:
    """Return the device, how many of it, and the precision: `2 × NVIDIA A100, bf16`."""
    kind, count = accelerator.device.type, accelerator.num_processes
    if kind == "cpu":
        processes = f", {count} processes" if count > 1 else ""
        cores = usable_cores()
        return f"cpu, {cores} core{'s' if cores > 1 else ''}{processes}, {_describe_precision(precision, on_cpu=True)}"
    return f"{f'{count} × ' if count > 1 else ''}{_name_device(kind)}, {_describe_precision(precision, on_cpu=False)}"


def _name_device(kind: str) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if kind == "cuda" else kind


def _describe_precision(precision: str, *, on_cpu: bool) -> str:
    if precision == "no":
        return "float32"
    if precision == "bf16" and on_cpu and not _BF16_FLAGS & _cpu_flags():
        return "bf16 (emulated by this processor: slower than float32)"
    return precision


def _cpu_flags() -> set[str]:
    """Return what the processor can do; nothing where the system doesn't say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {word for line in lines if line.startswith(("flags", "Features")) for word in line.split()}
