"""What the user should know about a number type on this machine."""

from __future__ import annotations

import platform
import warnings

import torch


def describe_precision(precision: str, device: torch.device) -> str | None:
    """Return what is unusual about a precision here; None if nothing is."""
    if precision == "bf16" and device.type == "cpu" and not _cpu_has_bf16():
        return "bf16 is emulated: this CPU has no instructions for it, so training is slower than with 'no'"
    if precision == "fp8":
        return "fp8 has not been tested by this project: compare a short run with 'bf16' first"
    return None


def warn_of_precision(precision: str, device: torch.device) -> None:
    """Warn of what is unusual about a precision here."""
    message = describe_precision(precision, device)
    if message:
        warnings.warn(f"[train].precision: {message}", stacklevel=2)


def _cpu_has_bf16() -> bool:
    """Whether the CPU computes in bf16. Of other CPUs than Intel's and AMD's nothing is known here."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
