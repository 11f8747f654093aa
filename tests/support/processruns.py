"""Runs of several processes that share one start of the interpreter, and what they left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Plan:
    """Runs of two processes, one after the other, in folders below `folder`."""

    folder: Path
    steps: list[dict[str, Any]] = field(default_factory=list)

    def train(self, name: str, spec: Path, *, sample: bool = False, **settings: Any) -> None:
        """Train a spec. Keys of settings have two underscores for a dot."""
        step = {"spec": str(spec), "sample": sample, "out": str(self.folder / name)}
        self.steps.append({**step, "set": _dotted(settings)})

    def resume(self, name: str, former: str, after: int, **settings: Any) -> None:
        """Continue a copy of another run as it was after some update."""
        step = {"resume": str(self.folder / former), "after": after, "out": str(self.folder / name)}
        self.steps.append({**step, "set": _dotted(settings)})

    def execute(self, processes: int = 2, timeout: float = 300.0) -> None:
        """Do it all."""
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps(self.steps))
        self.steps = []
        _start_processes("tests.support.shard_process", [str(plan)], processes, timeout)


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("__", "."): value for key, value in settings.items()}


def exported_shapes(run: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that a run has exported."""
    from safetensors.torch import load_file

    files = [load_file(path) for path in sorted((run / "model").glob("*.safetensors"))]
    return {name: tuple(tensor.shape) for file in files for name, tensor in file.items()}


def run_module(module: str, *arguments: str) -> Any:
    """Return the JSON that a module prints which two processes run."""
    return json.loads(_start_processes(module, arguments).splitlines()[-1])


def _start_processes(module: str, arguments: Sequence[str], processes: int = 2, timeout: float = 600.0) -> str:
    """Run a module in several processes, and return what they print."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*launcher, "-m", module, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
