"""A resume that is refused changes no byte of the run's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import bits, results, steps, write_spec

from taskrecipe import RecipeError, resume, train


def hash_files(folder: Path) -> dict[str, str]:
    """Return the hash of every file but the lock's."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def change_row(folder: Path) -> None:
    lines = (folder / "train.csv").read_text().splitlines()
    lines[5] = "another sentence," + lines[5].split(",", 1)[1]
    (folder / "train.csv").write_text("\n".join(lines) + "\n")


def change_tokenizer(folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["normalizer"] = None if tokenizer["normalizer"] else {"type": "Lowercase"}
    path.write_text(json.dumps(tokenizer))


def change_nothing(folder: Path) -> None:
    pass


def remove_rows(folder: Path) -> None:
    (folder / "train.csv").unlink()


CHANGES: dict[str, tuple[Callable[[Path], None], dict[str, object], str]] = {
    "a key of the spec": (change_nothing, {"train.learning_rate": 0.5}, "train.learning_rate"),
    "a seed": (change_nothing, {"seed": 4}, "seed"),
    "a key of the optimizer that changes its state": (change_nothing, {"optimizer.amsgrad": True}, "optimizer.amsgrad"),
    "a row": (change_row, {}, "train"),
    "a tokenizer": (change_tokenizer, {}, "processor|tokenizer|model"),
    "a missing file": (remove_rows, {}, "there is no file"),
    "a callback": (change_nothing, {"callbacks": [{"name": "time_limit", "minutes": 5.0}]}, "callbacks"),
    "a wrong spec": (change_nothing, {"train.batch_size": 0}, "batch_size"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_refused_resume_changes_nothing(kind: str, tmp_path: Path) -> None:
    change, settings, problem = CHANGES[kind]
    run = train(write_spec(tmp_path), set={"train.updates": 3}, out=tmp_path / "run", quiet=True)
    before = hash_files(run.folder)
    assert {"spec.toml", "log.jsonl", "results.json", "environment.json", "model/model.safetensors"} <= set(before)
    change(tmp_path)
    with pytest.raises(RecipeError, match=problem):
        resume(run.folder, set=settings, quiet=True)
    assert hash_files(run.folder) == before


def test_a_refused_command_says_how_to_allow_it_and_changes_nothing(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    folder = train(spec, set={"train.updates": 3}, out=tmp_path / "run", quiet=True).folder
    before = hash_files(folder)
    arguments = ("resume", str(folder), "--set", "train.learning_rate=0.5", "--set", "train.updates=5")
    refused = zygote.run(*arguments, "--allow", "train.updates", cwd=tmp_path)
    assert refused.code == 2, refused.stderr
    assert "--allow train.learning_rate" in refused.stderr
    assert hash_files(folder) == before
    accepted = zygote.run(*arguments, "--allow", "train.updates", "--allow", "train.learning_rate", cwd=tmp_path)
    assert accepted.code == 0, accepted.stderr
    assert results(folder)["updates"] == 5
    assert steps(folder)[-1] == 5
    assert bits(zygote, folder)
