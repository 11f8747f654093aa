"""`recipe export`: what is written gives the outputs of the run, or nothing is written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Zygote

from taskrecipe import Run, UsageError

SampleRun = Callable[[str], Path]


SECRET = "canary-of-a-secret-variable"


def export(zygote: Zygote, run: Path, to: str, folder: Path, *options: str) -> dict[str, Any]:
    """Export a run, and return what the command tells about it. Nothing of this machine may be in the export."""
    command = ("export", str(run), "--to", to, "-o", str(folder), "--json", *options)
    done = zygote.run(*command, cwd=run.parent, MY_TOKEN=SECRET)
    assert done.code == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["folder"] == str(folder)
    places = [str(run.parent), str(folder.parent), str(Path(__file__).parents[2]), sys.prefix, SECRET]
    found = contents(folder)
    assert [(name, place) for name, content in found.items() for place in places if place.encode() in content] == []
    assert not [name for name in found if name.endswith((".bin", ".pt", ".pkl", ".ckpt"))]
    assert not [name for name, content in found.items() if content[:2] in (b"\x80\x02", b"\x80\x04")]  # a pickle
    return told


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names_in(folder)}


def predict(folder: Path, *arguments: str) -> Any:
    """Run the exported predict.py where neither torch nor transformers can be imported."""
    forbidden = folder.parent / "forbidden"
    for package in ("torch", "transformers"):
        (forbidden / package).mkdir(parents=True, exist_ok=True)
        (forbidden / package / "__init__.py").write_text("raise ImportError('not here')")
    environment = {**os.environ, "PYTHONPATH": str(forbidden)}
    command = [sys.executable, "predict.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def answer(run: Path, row: dict[str, Any]) -> Any:
    """What the run itself answers to a row."""
    import torch
    from datasets import Dataset

    trained = Run(run)
    recipe, model = trained.recipe, trained.model()
    rows = recipe.preprocess(Dataset.from_list([row]), "validation")
    batch = recipe.collate(list(rows))
    with torch.no_grad():
        predictions = recipe.predict(recipe.forward(model, batch), batch)
    return recipe.answer({name: values[0] for name, values in predictions.items()}, rows[0])


# The Hugging Face layout -----------------------------------------------------------------------------


def test_hf_is_the_model_of_the_run_and_nothing_else(zygote: Zygote, glue_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(glue_run, tmp_path / "run")
    for name in ("optimizer.pt", "notes.pkl", "pytorch_model.bin", "modeling.py", ".env"):
        (run / "model" / name).write_bytes(b"put there by someone")
    told = export(zygote, run, "hf", tmp_path / "out" / "hf")
    assert told["difference"] == 0.0
    assert told["rows"] == 16
    assert names_in(tmp_path / "out" / "hf") == names_in(glue_run / "model")
    for name in ("model.safetensors", "tokenizer.json", "recipe.json", "spec.toml"):
        assert (tmp_path / "out" / "hf" / name).read_bytes() == (glue_run / "model" / name).read_bytes()


def test_a_model_that_can_not_be_loaded_is_not_written(zygote: Zygote, glue_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(glue_run, tmp_path / "run")
    (run / "model" / "model.safetensors").write_bytes(b"damaged")
    done = zygote.run("export", str(run), "--to", "hf", "-o", str(tmp_path / "out" / "hf"), cwd=tmp_path)
    assert done.code in (1, 2)
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


# ONNX ------------------------------------------------------------------------------------------------


def test_the_onnx_graph_of_glue_gives_the_answers_of_the_run(zygote: Zygote, glue_run: Path, tmp_path: Path) -> None:
    told = export(zygote, glue_run, "onnx", tmp_path / "onnx")
    assert 0 < told["difference"] < 1e-5
    assert {"model.onnx", "labels.json", "tokenizer.json", "predict.py", "README.md"} <= names_in(tmp_path / "onnx")
    for first, second in (("garden river", "stone"), ("winter " * 200, "a b c")):
        found = predict(tmp_path / "onnx", first, second)
        expected = answer(glue_run, {"sentence1": first, "sentence2": second})
        assert found["label"] == expected["label"]
        assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_the_onnx_graph_of_token_classification_tags_as_the_run_does(
    zygote: Zygote, sample_run: SampleRun, tmp_path: Path
) -> None:
    run = sample_run("token_classification")
    assert export(zygote, run, "onnx", tmp_path / "onnx")["difference"] < 1e-5
    words = ["garden", "river", "stone", "winter", "garden"]
    assert predict(tmp_path / "onnx", *words)["tags"] == answer(run, {"tokens": words})["tags"]


def test_the_onnx_graph_of_image_classification_classifies_as_the_run_does(
    zygote: Zygote, sample_run: SampleRun, tmp_path: Path
) -> None:
    import numpy as np
    from PIL import Image

    run = sample_run("image_classification")
    assert export(zygote, run, "onnx", tmp_path / "onnx")["difference"] < 1e-5
    pixels = np.random.default_rng(3).integers(0, 256, (50, 71, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    found = predict(tmp_path / "onnx", str(tmp_path / "image.png"))
    trained = Run(run)
    recipe = trained.recipe
    row = recipe.example(
        {"image": {"bytes": (tmp_path / "image.png").read_bytes(), "path": None}}, np.random.default_rng(0), False
    )
    batch = recipe.collate([row])
    predictions = recipe.predict(recipe.forward(trained.model(), batch), batch)
    expected = recipe.answer({name: values[0].detach() for name, values in predictions.items()}, row)
    assert found["label"] == expected["label"]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


@pytest.mark.chaos
@pytest.mark.parametrize(
    "name",
    ["stsb", "clm", "mlm", "swag", "mim", "question_answering", "semantic_segmentation", "detection", "two_tower"],
)
def test_every_other_recipe_with_one_graph_is_exported(
    name: str, zygote: Zygote, sample_run: SampleRun, tmp_path: Path
) -> None:
    assert export(zygote, sample_run(name), "onnx", tmp_path / "onnx")["difference"] < 1e-5


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("seq2seq", "the model is called 16 times for one batch"),
        ("multitask", "the model takes more than tensors"),
    ],
)
def test_what_one_graph_can_not_stand_for_is_refused(
    name: str, why: str, zygote: Zygote, sample_run: SampleRun, tmp_path: Path
) -> None:
    done = zygote.run("export", str(sample_run(name)), "--to", "onnx", "-o", str(tmp_path / "onnx"), cwd=tmp_path)
    assert done.code == 1
    assert f"recipe '{name}' can't be exported to ONNX: {why}" in done.stderr
    assert "--to hf" in done.stderr
    assert list(tmp_path.iterdir()) == []


# What is refused -------------------------------------------------------------------------------------


def test_outputs_beyond_the_tolerance_are_refused_and_nothing_is_left(
    zygote: Zygote, glue_run: Path, tmp_path: Path
) -> None:
    target = tmp_path / "onnx"
    done = zygote.run("export", str(glue_run), "--to", "onnx", "-o", str(target), "--tolerance", "0", cwd=tmp_path)
    assert done.code == 1
    assert "is not the trained one: on 16 rows its outputs differ by up to" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_files_is_never_replaced(zygote: Zygote, glue_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    before = contents(glue_run / "model")
    for folder in (tmp_path / "mine", glue_run / "model", glue_run):
        done = zygote.run("export", str(glue_run), "--to", "hf", "-o", str(folder), "--force", cwd=tmp_path)
        assert done.code == 2
        assert "is not empty: name a new folder\n" in done.stderr
    assert contents(tmp_path / "mine") == {"notes.txt": b"mine"}
    assert contents(glue_run / "model") == before


def test_an_earlier_export_is_replaced_only_by_force(glue_run: Path, tmp_path: Path) -> None:
    shutil.copytree(glue_run / "model", tmp_path / "hf")
    (tmp_path / "hf" / "old.txt").write_text("of the earlier one")
    with pytest.raises(UsageError, match="or replace the export there with --force"):
        Run(glue_run).export(to="hf", folder=tmp_path / "hf")
    assert Run(glue_run).export(to="hf", folder=tmp_path / "hf", force=True).difference == 0.0
    assert names_in(tmp_path / "hf") == names_in(glue_run / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "hub"], "--to hub needs --repo OWNER/NAME"),
        (["--to", "hf", "--repo", "me/model"], "--repo is for --to hub"),
        (["--to", "hf", "-o", "/proc/none/hf"], "can't be written"),
    ],
)
def test_a_wrong_command_line_is_refused(
    options: list[str], message: str, zygote: Zygote, glue_run: Path, tmp_path: Path
) -> None:
    done = zygote.run("export", str(glue_run), *options, cwd=tmp_path)
    assert done.code == 2
    assert message in done.stderr


def test_a_run_without_a_model_says_so(zygote: Zygote, glue_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(glue_run, tmp_path / "run", ignore=shutil.ignore_patterns("model"))
    done = zygote.run("export", str(run), "--to", "hf", cwd=tmp_path)
    assert done.code == 2
    assert "has no model yet: it is written when training ends" in done.stderr


def test_rows_that_are_gone_are_named(zygote: Zygote, glue_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(glue_run, tmp_path / "run")
    spec = (run / "spec.toml").read_text().replace("validation.csv", "gone.csv")
    (run / "spec.toml").write_text(spec)
    done = zygote.run("export", str(run), "--to", "hf", cwd=tmp_path)
    assert done.code == 3
    assert "an export is checked with rows that the run was evaluated on" in done.stderr
    assert "gone.csv" in done.stderr
