"""No code from data, no network after loading, no secret in what a run leaves behind."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import GLUE, results, resume, train, write_spec

RECIPE = Path(sys.executable).with_name("recipe")
CANARY = "canary0123456789abcdef"


class _Payload:
    """Something that, unpickled, would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_a_planted_pickle_is_never_run(zygote: Zygote, tmp_path: Path) -> None:
    spec, mark = write_spec(tmp_path), tmp_path / "mark"
    payload = pickle.dumps(_Payload(mark))
    for name in ("train.pkl", "state.json.pkl", "cache.pt"):
        (tmp_path / name).write_bytes(payload)
    folder = train(zygote, spec)
    for checkpoint in (folder / "checkpoints").glob("step-*"):
        for name in ("random_states_0.pkl", "optimizer.bin", "scheduler.bin"):
            (checkpoint / name).write_bytes(payload)
    assert resume(zygote, folder).code == 0
    assert not mark.exists()
    written = [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pt", ".pth", ".bin")]
    assert all(path.read_bytes() == payload for path in written)


def test_a_model_that_is_only_a_pickle_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    spec, mark = write_spec(tmp_path), tmp_path / "mark"
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(_Payload(mark)))
    done = zygote.run("run", str(spec), "--out", str(tmp_path / "run"), cwd=tmp_path)
    assert done.code != 1, done.stderr
    assert not mark.exists()


def test_training_needs_no_network(zygote: Zygote, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("network namespaces are not permitted here")
    spec = write_spec(tmp_path)
    done = subprocess.run(
        ["unshare", "-rn", str(RECIPE), "run", str(spec), "--out", str(tmp_path / "run"), "--set", "train.updates=2"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "run")["status"] == "finished"


def test_no_secret_leaves(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GLUE + '[track]\nname = "tensorboard"\n')
    for command in (["init", "-q"], ["remote", "add", "origin", f"https://user:{CANARY}@example.invalid/x.git"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    names = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD")
    folder = train(zygote, spec, "run", **dict.fromkeys(names, CANARY))
    seen = [path for path in folder.rglob("*") if path.is_file()]
    assert any("track" in path.parts for path in seen)
    assert [path for path in seen if CANARY.encode() in path.read_bytes()] == []
    refused = zygote.run("run", str(spec), "--set", f"name='hf_{CANARY * 2}'", cwd=tmp_path)
    assert refused.code == 2
    assert CANARY not in refused.stderr


def test_what_a_run_leaves_can_be_read_by_others(zygote: Zygote, tmp_path: Path) -> None:
    """The names that others build on."""
    folder = train(zygote, write_spec(tmp_path))
    found = results(folder)
    assert {"status", "data", "updates", "best", "final"} <= set(found)
    assert (found["status"], found["data"], found["updates"]) == ("finished", "files", 9)
    assert set(found["best"]) == {"metric", "value", "step", "metrics"}
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert {"start", "update", "evaluate", "save", "end"} <= {line["event"] for line in lines}
    assert all(isinstance(line["step"], int) for line in lines)
    updates = [line for line in lines if line["event"] == "update"]
    assert all({"loss", "learning_rate", "grad_norm"} <= set(line) for line in updates)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    answer = pipeline("text-classification", model=model, tokenizer=tokenizer)({"text": "warm", "text_pair": "cold"})
    assert answer["label"] in model.config.id2label.values()


def test_a_resolved_spec_can_be_run_again(zygote: Zygote, tmp_path: Path) -> None:
    from tests.support.runs import bits

    first = train(zygote, write_spec(tmp_path), "first", "--set", "train.updates=3")
    again = zygote.run("run", str(first / "spec.toml"), "--out", str(tmp_path / "again"), cwd=tmp_path)
    assert again.code == 0, again.stderr
    assert bits(zygote, first) == bits(zygote, tmp_path / "again")


def test_a_folder_in_which_nothing_was_begun_says_so(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "never").mkdir()
    (tmp_path / "never" / "run.json").write_text('{"format": 1, "id": "a", "created": "now"}')
    done = zygote.run("resume", "never", cwd=tmp_path)
    assert done.code == 2
    assert "never has no spec.toml: no training has started there; start with `recipe run" in done.stderr
