"""`python -m taskrecipe.export.loading_process FOLDER`: load an exported model and run it on the batches there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from taskrecipe.export.round_trip import ABOUT, INPUTS, OUTPUTS, SKELETONS, run_model
from taskrecipe.export.tensors import as_arrays, name_tensors, read_arrays, write_arrays


def main() -> None:
    """Write the outputs of the model for each batch."""
    import torch

    from taskrecipe.checkpoints.nested_state import unpack_state
    from taskrecipe.run.export import load_exported_model, load_recipe
    from taskrecipe.spec.validation import validate

    folder = Path(sys.argv[1])
    about, skeletons = (json.loads((folder / name).read_bytes()) for name in (ABOUT, SKELETONS))
    model = Path(about["folder"])
    recipe = load_recipe(validate(Path(about["run"]) / "spec.toml"), model)
    module = load_exported_model(recipe, model)
    for number, skeleton in enumerate(skeletons):
        arrays = read_arrays(folder / INPUTS.format(number))
        batch = unpack_state({name: torch.from_numpy(array) for name, array in arrays.items()}, skeleton)
        write_arrays(folder / OUTPUTS.format(number), as_arrays(name_tensors(run_model(recipe, module, batch))))


if __name__ == "__main__":
    main()
