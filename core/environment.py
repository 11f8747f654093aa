"""What a run was made with: versions, the state of the repository, hardware. No names of machines or people."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "taskrecipe",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "evaluate",
    "tokenizers",
    "safetensors",
    "numpy",
    "scikit-learn",
    "scipy",
    "pillow",
)
"""Distributions that take part in what a run computes."""

GIT_SECONDS = 5.0


def describe(repository: Path, packages: Iterable[str] = ()) -> dict[str, Any]:
    """The content of environment.json; `repository` is where the spec lies, `packages` are those of its plugins."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": _versions({*PACKAGES, *packages}),
        "git": _git_state(repository),
        "hardware": _hardware(),
    }


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in sorted(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and cleanness of the repository around `folder`; None where there is none, or no git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "remote": _git(folder, "config", "--get", "remote.origin.url"),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    # A repository's own settings could name programs to be run; prompts and locks would hold up the run.
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = subprocess.run(
            command, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode(errors="replace").strip()


def _hardware() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": _usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerators": _accelerators(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _accelerators() -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return [{"name": device.type, "count": torch.accelerator.device_count()}] if device else []
    every = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": one.name, "memory_bytes": one.total_memory} for one in every]
