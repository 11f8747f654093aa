"""`python -m taskrecipe.export.onnx_process FOLDER`: run an ONNX file on the inputs there, without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from taskrecipe.export.round_trip import ABOUT, INPUTS, OUTPUTS
from taskrecipe.export.tensors import read_arrays, write_arrays


def main() -> None:
    """Write the outputs of the model for each set of inputs."""
    import onnxruntime

    folder = Path(sys.argv[1])
    about = json.loads((folder / ABOUT).read_bytes())
    session = onnxruntime.InferenceSession(about["path"], providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for number in range(about["batches"]):
        outputs = session.run(names, read_arrays(folder / INPUTS.format(number)))
        write_arrays(folder / OUTPUTS.format(number), dict(zip(names, outputs, strict=True)))


if __name__ == "__main__":
    main()
