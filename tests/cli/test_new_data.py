"""`recipe new NAME --data FILE`: a spec for one's own data, that is valid and runs as written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.support.runs import write_task

TICKETS = (Path(__file__).parents[1] / "support" / "tickets.csv").read_text().splitlines()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def rows(count: int = 40) -> list[dict[str, object]]:
    return [{"number": n, "words": f"a text about number {n} and more", "kind": "ab"[n % 2]} for n in range(count)]


def write_coco(folder: Path, outside: bool = False) -> Path:
    (folder / "photos").mkdir(parents=True)
    images, annotations = [], []
    for number in range(6):
        Image.new("RGB", (48, 40), (number, 0, 0)).save(folder / "photos" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 48, "height": 40})
        box = [10, 10, 60 if outside else 20, 20]
        annotations.append({"id": number, "image_id": number, "category_id": 1 + number % 2, "bbox": box, "area": 400})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    write_json(folder / "coco_train.json", {"images": images, "annotations": annotations, "categories": categories})
    write_json(folder / "coco_val.json", {"images": images, "annotations": annotations, "categories": categories})
    return folder / "coco_train.json"


def write_folders(folder: Path) -> Path:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(folder / split / name / "1.png")
    return folder


def write_squad(path: Path) -> Path:
    answer = {"text": "harbor", "answer_start": 4}
    questions = [{"id": "1", "question": "where?", "answers": [answer]}, {"id": "2", "question": "who?", "answers": []}]
    data = [{"title": "a", "paragraphs": [{"context": "the harbor", "qas": questions}]}]
    write_json(path, {"version": "v2.0", "data": data})
    return path


def written(recipe, name: str, data: Path, folder: Path) -> dict:
    """The spec that is written, after it was found valid."""
    path = folder / "specs" / "made.toml"
    done = recipe("new", name, path, "--data", data, "--force")
    assert done.code == 0, done.err
    checked = recipe("validate", path)
    assert checked.code == 0, checked.out + path.read_text()
    return tomllib.loads(path.read_text())


def test_columns_separator_encoding_classes_and_lengths_of_a_csv_are_guessed(recipe, tmp_path):
    lines = [line.replace("delivery", "Zustellung für") for line in TICKETS]
    (tmp_path / "tickets.csv").write_text("\n".join(lines), encoding="cp1252")
    spec = written(recipe, "glue", tmp_path / "tickets.csv", tmp_path)
    assert spec["task"] == {"name": "single", "max_length": 32}
    assert spec["data"] == {
        "separator": ";",
        "encoding": "cp1252",
        "holdout": 0.1,
        "files": {"train": "../tickets.csv"},
        "columns": {"sentence": "body", "label": "queue"},
    }
    text = (tmp_path / "specs" / "made.toml").read_text()
    assert "guessed: classes: Zustellung für, billing" in text


def test_a_pair_numbers_and_a_validation_file_are_recognized(recipe, tmp_path):
    lines = ["Premise,hypothesis,score"] + [f"one of {n} words here,another text here,{n / 4}" for n in range(30)]
    for split in ("train", "dev"):
        (tmp_path / f"my_{split}.csv").write_text("\n".join(lines))
    spec = written(recipe, "glue", tmp_path / "my_train.csv", tmp_path)
    assert spec["task"] == {"name": "pair", "regression": True, "max_length": 32}
    assert spec["data"]["files"] == {"train": "../my_train.csv", "validation": "../my_dev.csv"}
    assert spec["data"]["columns"] == {"sentence1": "Premise", "sentence2": "hypothesis", "label": "score"}


def test_rows_of_jsonl_and_parquet_are_read_too(recipe, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows())))
    pq.write_table(pa.Table.from_pylist(rows()), tmp_path / "all.parquet")
    made = [written(recipe, "glue", tmp_path / f"all.{ending}", tmp_path) for ending in ("jsonl", "parquet")]
    assert made[0]["data"]["columns"] == made[1]["data"]["columns"] == {"sentence": "words", "label": "kind"}


FILES = {
    "detection": write_coco,
    "image_classification": write_folders,
    "mim": write_folders,
    "question_answering": lambda folder: write_squad(folder / "squad.json"),
}


@pytest.mark.parametrize("name", FILES)
def test_annotations_and_folders_are_recognized(recipe, tmp_path, name):
    (tmp_path / "data").mkdir()
    spec = written(recipe, name, FILES[name](tmp_path / "data"), tmp_path)
    expected = {
        "detection": {"train": "../data/coco_train.json", "validation": "../data/coco_val.json"},
        "question_answering": {"train": "../data/squad.json"},
    }
    folders = {"train": "../data/train", "validation": "../data/val"}
    assert spec["data"]["files"] == expected.get(name, folders)
    if name == "detection":
        assert spec["data"]["images"] == "../data/photos"
        assert spec["task"] == {"image_size": 64}
    if name == "question_answering":
        assert spec["task"]["no_answer"] is True


def test_boxes_beyond_their_image_are_repaired_and_said_so(recipe, tmp_path):
    spec = written(recipe, "detection", write_coco(tmp_path / "data", outside=True), tmp_path)
    assert spec["task"]["invalid_boxes"] == "repair"
    assert "6 boxes" in (tmp_path / "specs" / "made.toml").read_text()


@pytest.mark.parametrize("name", ["clm", "mlm"])
def test_plain_text_is_for_language_models(recipe, tmp_path, name):
    (tmp_path / "book.txt").write_text("It was late.\n\nNobody came.\n" * 20)
    spec = written(recipe, name, tmp_path / "book.txt", tmp_path)
    assert spec["data"]["files"] == {"train": "../book.txt"}
    refused = recipe("new", "glue", tmp_path / "x.toml", "--data", tmp_path / "book.txt")
    assert (refused.code, (tmp_path / "x.toml").exists()) == (3, False)
    assert "plain text, which is for recipes 'clm' and 'mlm'" in refused.err


MISFITS = {
    "glue": ("a,b\n1,2\n3,4\n5,6\n7,8\n", "doesn't fit this recipe: it needs"),
    "swag": ("text,label\nsome words here,1\nother words here,0\n", "endings (ending0, ending1, …)"),
    "token_classification": ("tokens,tags\na b,O O\n", "a list of words (tokens)"),
    "detection": ("text,label\nsome words here,1\n", "needs a folder of images, or COCO json"),
    "multitask": ("text,label\nsome words here,1\n", "write the spec without --data"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_data_that_doesn_t_fit_is_refused_with_what_was_found(recipe, tmp_path, name):
    content, message = MISFITS[name]
    (tmp_path / "rows.csv").write_text(content)
    refused = recipe("new", name, tmp_path / "x.toml", "--data", tmp_path / "rows.csv")
    assert refused.code in (2, 3)
    assert message in refused.err
    assert not (tmp_path / "x.toml").exists()


def test_a_missing_and_an_unreadable_file_are_named(recipe, tmp_path):
    assert "there is no file or folder" in recipe("new", "glue", tmp_path / "x.toml", "--data", tmp_path / "no.csv").err
    (tmp_path / "rows.doc").write_text("?")
    assert "must end in .csv" in recipe("new", "glue", tmp_path / "x.toml", "--data", tmp_path / "rows.doc").err
    (tmp_path / "rows.jsonl").write_text("{not json")
    refused = recipe("new", "glue", tmp_path / "x.toml", "--data", tmp_path / "rows.jsonl")
    assert refused.code == 3
    assert "is not JSON" in refused.err


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=4, unique=True),
    st.lists(st.text(max_size=20), min_size=1, max_size=8),
)
def test_whatever_is_in_a_file_a_written_spec_is_valid(recipe, tmp_path, names, values):
    made = [
        dict.fromkeys(names, f"{value} and three more words {n}") | {"label": n % 2}
        for n in range(12)
        for value in values[:1]
    ]
    (tmp_path / "any.jsonl").write_text("\n".join(map(json.dumps, made)))
    path = tmp_path / "any.toml"
    if recipe("new", "glue", path, "--data", tmp_path / "any.jsonl", "--force").code == 0:
        assert recipe("validate", path).code == 0, path.read_text()


def test_a_written_spec_runs_as_it_is(recipe, tmp_path, zygote):
    write_task(tmp_path)
    assert recipe("new", "glue", tmp_path / "own.toml", "--data", tmp_path / "train.csv").code == 0
    local = ["--set", "model.name=model", "--set", "train.updates=2"]
    done = zygote.run("run", "own.toml", *local, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.stderr
    shown = zygote.run("preview", "run", "-n", "1", cwd=tmp_path)
    assert shown.code == 0, shown.stderr
    assert np.isfinite(json.loads((tmp_path / "run" / "results.json").read_text())["final"]["macro_f1"])
