"""Answers that need more than a prediction: images in a folder, generated text, fillings, spans, neighbors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from taskrecipe import Run, train
from taskrecipe.use.predict import Plan, predict_file, predict_lines

SHORT = {"train.updates": 2, "train.batch_size": 16, "evaluate.every": "end", "schedule.warmup": 0}


def make_run(folder: Path, recipe: str, **settings: Any) -> Run:
    (folder / "spec.toml").write_text(f'spec_version = 1\nrecipe = "{recipe}"\n[train]\nlearning_rate = 1e-3\n')
    return train(folder / "spec.toml", set={**SHORT, **settings}, sample=True, out=folder / "run", quiet=True)


def write_images(run: Run, folder: Path, count: int = 3) -> Path:
    """Write the first images of the run's own sample into a folder."""
    rows = run.load().recipe.sample(folder / "model")["validation"]
    (folder / "images").mkdir()
    for number in range(count):
        rows[number]["image"].save(folder / "images" / f"{number}.png")
    return folder / "images"


@pytest.mark.parametrize(
    ("recipe", "names"),
    [("semantic_segmentation", ["map", "overlay"]), ("mim", ["filled", "shown"]), ("detection", ["objects"])],
)
def test_images_become_files(tmp_path: Path, recipe: str, names: list[str]) -> None:
    run = make_run(tmp_path, recipe)
    images, out = write_images(run, tmp_path), tmp_path / "answers"
    (images / "broken.png").write_bytes(b"no image")
    assert predict_file(Plan(run.folder, skip_bad=True), str(images), out) == 1
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [line["image"] for line in lines] == [str(images / f"{number}.png") for number in range(3)]
    for number, line in enumerate(lines):
        assert sorted(line["files"]) == names
        for name, file in line["files"].items():
            assert file == f"{number:06d}-{number}.{name}.png"
            with Image.open(out / file) as image, Image.open(images / f"{number}.png") as given:
                assert image.size == given.size
    [bad] = [json.loads(line) for line in (tmp_path / "answers.bad.jsonl").read_text().splitlines()]
    assert bad["place"] == f"'{images / 'broken.png'}'"
    if recipe == "semantic_segmentation":
        check_map(lines[0], out, run.recipe.labels)


def check_map(line: dict[str, Any], out: Path, labels: list[str]) -> None:
    """The pixels of the map are class numbers, of which the answer says how many there are."""
    with Image.open(out / line["files"]["map"]) as image:
        numbers, counts = np.unique(np.asarray(image), return_counts=True)
    shares = line["prediction"]["classes"]
    assert [shares[labels[number]] for number in numbers] == pytest.approx((counts / counts.sum()).tolist())


def test_a_language_model_goes_on_or_measures(tmp_path: Path) -> None:
    run = make_run(tmp_path, "clm")
    texts = [{"text": text} for text in ("the old sailor", "a", "the river closes under the golden window", "the")]
    measured = run.predict(texts[:1])
    assert measured[0].keys() == {"loss", "perplexity", "tokens"}
    greedy = run.predict(texts, set={"predict.max_new_tokens": 5})
    assert all(isinstance(answer["continuation"], str) for answer in greedy)
    drawn = {"predict.max_new_tokens": 8, "predict.temperature": 1.0, "predict.top_k": 50, "predict.top_p": 0.95}
    first = run.predict(texts, set=drawn)
    assert first != run.predict(texts, set={"predict.max_new_tokens": 8})
    assert run.predict(texts, set=drawn) == first
    assert run.predict(texts[2:], set=drawn) == first[2:]  # a draw depends on its own text only


def test_a_mask_is_filled(tmp_path: Path) -> None:
    run = make_run(tmp_path, "mlm")
    [answer] = run.predict([{"text": "the [MASK] sailor closes the [MASK]"}])
    assert len(answer["masked"]) == 2
    best = [mask["fillings"][0]["token"] for mask in answer["masked"]]
    assert all(token in answer["text"] for token in best)
    assert "[MASK]" not in answer["text"]


def test_entities_of_a_text_have_its_characters(tmp_path: Path) -> None:
    run = make_run(tmp_path, "token_classification")
    text = "The  old sailor, near the river."
    [answer] = run.predict([{"text": text}])
    assert answer["text"] == text
    assert answer["words"] == ["The", "old", "sailor", ",", "near", "the", "river", "."]
    for entity in answer["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]


def test_the_nearest_rows_of_another_file(tmp_path: Path) -> None:
    run = make_run(tmp_path, "two_tower")
    rows = [{"text1": one["text1"]} for one in run.load().recipe.sample(tmp_path / "model")["validation"]][:12]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    (tmp_path / "others.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = Plan(run.folder, nearest=str(tmp_path / "others.jsonl"))
    lines = b"".join(predict_lines(plan, str(tmp_path / "new.jsonl"))).splitlines()
    for number, line in enumerate(map(json.loads, lines)):
        nearest = line["prediction"]["nearest"]
        assert len(nearest) == 10
        assert nearest[0] == {"row": number, "text": rows[number]["text1"], "cosine": pytest.approx(1.0, abs=1e-5)}
        assert len(line["prediction"]["text1"]) == len(run.predict(rows[:1])[0]["text1"])
