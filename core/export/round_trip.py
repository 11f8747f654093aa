"""The round trip: what was written is loaded in a fresh process, and its outputs are compared with the run's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.errors import ExportError
from taskrecipe.export.tensors import Arrays, as_arrays, largest_difference, name_tensors, read_arrays, write_arrays
from taskrecipe.system.secrets import redact

if TYPE_CHECKING:
    import torch

    from taskrecipe.export.check_batches import CheckRows
    from taskrecipe.recipe import Batch, Recipe

Process = Literal["loading_process", "onnx_process"]
"""The module that runs in the fresh process."""

INPUTS, SKELETONS, OUTPUTS, ABOUT = "inputs-{}.npz", "skeletons.json", "outputs-{}.npz", "about.json"


@dataclass(frozen=True)
class Check:
    """How far the outputs of an export are from those of the run."""

    rows: int
    """Rows that were compared."""
    difference: float
    """The largest difference of all outputs, relative to an output's largest value if that is above 1."""

    def require(self, tolerance: float) -> None:
        """Raise if the difference is above the tolerance."""
        if not self.difference <= tolerance:
            raise ExportError(
                f"the exported model is not the trained one: on {self.rows} rows its outputs differ by up to "
                f"{self.difference:.3g}, and --tolerance is {tolerance:g}. Nothing was written"
            )


def run_model(recipe: Recipe, module: torch.nn.Module, batch: Batch) -> Any:
    """Run the model as evaluations do, in single precision."""
    import torch

    from taskrecipe.text.projection import whole_outputs

    with torch.no_grad(), whole_outputs():
        return recipe.forward(module.eval(), batch)


def check_model_folder(run: Path, folder: Path, module: torch.nn.Module, parts: Sequence[CheckRows]) -> Check:
    """Load the model in `folder` in a fresh process, and compare its outputs with those of `module`."""
    from taskrecipe.checkpoints.nested_state import pack_state

    packed = [pack_state(part.batch) for part in parts]
    expected = [as_arrays(name_tensors(run_model(part.recipe, module, part.batch))) for part in parts]
    about = {"run": str(run.absolute()), "folder": str(folder.absolute())}
    inputs = [as_arrays(tensors) for tensors, _ in packed]
    found = _ask("loading_process", about, inputs, [skeleton for _, skeleton in packed])
    return _compare(expected, found, sum(len(part.rows) for part in parts))


def check_onnx(path: Path, inputs: Sequence[Arrays], expected: Sequence[Arrays], rows: int) -> Check:
    """Run an ONNX file in a fresh process that has no torch, and compare its outputs with the expected ones."""
    return _compare(expected, _ask("onnx_process", {"path": str(path.absolute())}, inputs), rows)


def _compare(expected: Sequence[Arrays], found: Sequence[Arrays], rows: int) -> Check:
    pairs = zip(expected, found, strict=True)
    return Check(rows, max(largest_difference(one, other) for one, other in pairs))


def _ask(
    process: Process, about: Mapping[str, Any], inputs: Sequence[Arrays], skeletons: Sequence[Any] = ()
) -> list[Arrays]:
    """Run a process of its own on the inputs, and return its outputs."""
    with TemporaryDirectory(prefix="taskrecipe-export-") as name:
        folder = Path(name)
        (folder / ABOUT).write_text(json.dumps({**about, "batches": len(inputs)}))
        (folder / SKELETONS).write_text(json.dumps(list(skeletons)))
        for number, arrays in enumerate(inputs):
            write_arrays(folder / INPUTS.format(number), arrays)
        command = [sys.executable, "-W", "ignore", "-m", f"taskrecipe.export.{process}", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ExportError(
                f"the exported model can't be loaded again: {_last_line(done.stderr)}. Nothing was written"
            )
        return [read_arrays(folder / OUTPUTS.format(number)) for number in range(len(inputs))]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return redact(lines[-1]) if lines else "the process ended without a message"
