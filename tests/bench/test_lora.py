"""What adapters save: memory of the process, state of the optimizer, and checkpoints, against training every weight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.runs import GLUE, write_task

pytestmark = pytest.mark.bench

SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}

MEASURE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers, peft, bitsandbytes
from taskrecipe import train
def peak():  # not ru_maxrss, which includes what the process held that started this one
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
run = train(sys.argv[1], out=sys.argv[2], quiet=True)
after = peak()
files = {path.name: path.stat().st_size for path in (run.folder / "checkpoints" / "step-3").iterdir()}
print(json.dumps({"memory": (after - before) * 1024, "files": files}))
"""


def write_weights(folder: Path) -> None:
    """A pretrained model of 38 million weights, which are random."""
    import torch
    from transformers import AutoConfig, BertModel

    config = AutoConfig.from_pretrained(folder, **SIZES)
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)


def measure(spec: Path, name: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(spec), str(spec.parent / name)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_adapters_need_less_memory_and_disk(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_weights(tmp_path / "model")
    short = GLUE.replace("updates = 9", "updates = 3").replace("[checkpoint]\nevery = 1", '[checkpoint]\nevery = "end"')
    lora = short + '[[techniques]]\nname = "lora"\n'
    kinds = {"full": short, "lora": lora, "nf4": lora.replace('name = "model"', 'name = "model"\nquantize = "nf4"')}
    found = {}
    for name, text in kinds.items():
        (tmp_path / f"{name}.toml").write_text(text)
        found[name] = measure(tmp_path / f"{name}.toml", name)
    full = found.pop("full")
    for name, one in found.items():
        ratios = {"memory": one["memory"] / full["memory"]}
        ratios |= {
            file: one["files"][file] / full["files"][file] for file in ("model.safetensors", "optimizer.safetensors")
        }
        print(name, {key: round(ratio, 3) for key, ratio in ratios.items()})
        assert ratios["memory"] < 0.8  # rows, activations and the evaluation are the same in both
        assert max(ratios["model.safetensors"], ratios["optimizer.safetensors"]) < 0.05
