"""What a run was started with: by whom, when, how, on which machine, with which versions, from which commit."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from taskrecipe.run.git_state import describe_git
from taskrecipe.run.slurm import describe_job
from taskrecipe.system.secrets import redact

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


def describe_environment(
    repository: Path,
    *,
    files: Iterable[Path] = (),
    packages: Iterable[str] = (),
    plugins: Mapping[str, Any] | None = None,
    processes: int = 1,
) -> dict[str, Any]:
    """Return the content of environment.json. It runs git, so call it once a run.

    `repository` is the spec's folder; `files` are the spec and local data, which must be committed for a clean state;
    `packages` are further distributions to name; `plugins` come from `taskrecipe.run.identity.describe_plugins`;
    `processes` is the number of processes that really train.
    """
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "user": _user_name(),
        "command": [redact(word) for word in sys.argv],
        "python": platform.python_version(),
        "packages": package_versions({*PACKAGES, *packages}),
        "plugins": dict(plugins or {}),
        "git": describe_git(repository, files),
        "machine": _describe_machine(),
        "processes": processes,
        "job": describe_job(),
    }


def describe_spec_folder(spec_folder: Path, run_folder: Path) -> dict[str, str]:
    """Return where the spec of a run was: paths in the copy that the run keeps are relative to that folder."""
    return {"spec_folder": str(spec_folder), "spec_folder_from_here": os.path.relpath(spec_folder, run_folder)}


def package_versions(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for name in sorted(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _user_name() -> str | None:
    """Return the name of the user; None in a container whose user has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


def _describe_machine() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "accelerators": _describe_accelerators(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def usable_cores() -> int:
    """Count the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else psutil.cpu_count() or 1


def _describe_accelerators() -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return [{"name": device.type, "count": torch.accelerator.device_count()}] if device else []
    every = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": one.name, "memory_bytes": one.total_memory} for one in every]
