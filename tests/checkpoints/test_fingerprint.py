from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.support.checkpointing import store

from taskrecipe.checkpoints.fingerprint import fingerprint
from taskrecipe.errors import RecipeError

MODEL = {"b": torch.ones(3), "a": torch.arange(6).reshape(2, 3).bfloat16()}
OPTIMIZER = {"state/0/step": torch.tensor(3.0)}


def _checkpoint(folder: Path, model: dict[str, torch.Tensor], optimizer: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True)
    safetensors.torch.save_file(model, folder / "model.safetensors")
    safetensors.torch.save_file(optimizer, folder / "optimizer.safetensors")
    return folder


def test_it_is_the_sha256_of_names_types_shapes_and_bytes(tmp_path: Path):
    expected = hashlib.sha256()
    for file, name, dtype, tensor in [
        ("model.safetensors", "a", "BF16", MODEL["a"]),  # although it comes second in the file
        ("model.safetensors", "b", "F32", MODEL["b"]),
        ("optimizer.safetensors", "state/0/step", "F32", OPTIMIZER["state/0/step"]),
    ]:
        expected.update(json.dumps([file, name, dtype, list(tensor.shape)]).encode())
        expected.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    assert fingerprint(_checkpoint(tmp_path / "one", MODEL, OPTIMIZER)) == expected.hexdigest()


def test_it_does_not_depend_on_who_wrote_the_files_or_in_which_order(tmp_path: Path):
    theirs = fingerprint(_checkpoint(tmp_path / "theirs", MODEL, OPTIMIZER))
    turned = {name: MODEL[name] for name in reversed(MODEL)}
    ours = {"model.safetensors": turned, "optimizer.safetensors": OPTIMIZER, "state.json": b"{}"}
    assert fingerprint(store(tmp_path / "ours").commit(1, ours, best=None).path) == theirs


@pytest.mark.parametrize(
    "model",
    [
        {**MODEL, "b": torch.ones(3).nextafter(torch.tensor(2.0))},
        {**MODEL, "b": torch.ones(3, 1)},
        {**MODEL, "b": torch.ones(3).view(torch.int32)},
        {"a": MODEL["a"], "B": MODEL["b"]},
        {"a": MODEL["a"]},
    ],
    ids=["bit", "shape", "type", "name", "missing"],
)
def test_any_difference_gives_another(tmp_path: Path, model: dict[str, torch.Tensor]):
    one = fingerprint(_checkpoint(tmp_path / "one", MODEL, OPTIMIZER))
    assert fingerprint(_checkpoint(tmp_path / "other", model, OPTIMIZER)) != one


def test_a_folder_without_the_files_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"is not a checkpoint: it has no model\.safetensors"):
        fingerprint(tmp_path)


def test_neither_it_nor_finding_a_checkpoint_needs_torch(tmp_path: Path):
    contents = {"model.safetensors": MODEL, "optimizer.safetensors": OPTIMIZER}
    path = store(tmp_path).commit(4, contents, best=4).path
    script = (
        "import sys; from pathlib import Path;"
        "from taskrecipe.checkpoints.checkpoint import find_checkpoint;"
        "from taskrecipe.checkpoints.fingerprint import fingerprint;"
        "checkpoint = find_checkpoint(Path(sys.argv[1]), 'best'); checkpoint.verify();"
        "print(fingerprint(checkpoint.path), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    bare = _seconds([sys.executable, "-c", "import json, hashlib, concurrent.futures"])[0]
    seconds, output = _seconds([sys.executable, "-c", script, str(tmp_path)])
    assert output.split() == [fingerprint(path), "False", "False"]
    assert seconds < bare + 1.0


def _seconds(command: list[str]) -> tuple[float, str]:
    start = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return time.perf_counter() - start, output
