"""Loading as a run does it: splits and columns under our names, checked, and the same for the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, IterableDataset

from taskrecipe.core.data.load import blocks, load, missing
from taskrecipe.core.errors import DataError
from taskrecipe.core.model import ModelSource
from taskrecipe.core.recipe import Column, Recipe, Splits
from taskrecipe.core.spec.spec import Spec


class Words(Recipe):
    """Texts with a label."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.checked: dict[str, int] = {}

    def columns(self) -> dict[str, Column]:
        return {"text": Column("a sentence"), "label": Column("a class"), "weight": Column("a number", required=False)}

    def sample(self, folder: Path) -> Splits:
        (folder / "config.json").write_text("{}")
        return {name: Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}) for name in ("train", "validation")}

    def check(self, splits: Splits) -> None:
        self.checked = {name: len(rows) for name, rows in splits.items()}


class TwoEvaluations(Words):
    """Measured on two splits, as MNLI is."""

    def splits(self) -> dict[str, str]:
        return {"train": "train", "matched": "validation_matched", "mismatched": "validation_mismatched"}


def make_spec(folder: Path, data: dict[str, Any], **tables: Any) -> Spec:
    files = {split: str(folder / name) for split, name in data.pop("files", {}).items()}
    base = {
        "spec_version": 1,
        "recipe": "glue",
        "task": {"name": "sst2"},
        "model": {"type": "bert"},
        "train": {"learning_rate": 1e-3, "epochs": 1},
    }
    return Spec.model_validate({**base, "data": {"files": files, **data}, **tables})


def table(folder: Path, name: str, texts: list[str], header: str = "text,label") -> str:
    rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(texts))
    (folder / name).write_text(f"{header}\n{rows}")
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Training and validation rows that don't overlap."""
    table(tmp_path, "train.csv", [f"train {number}" for number in range(20)])
    table(tmp_path, "validation.csv", [f"validation {number}" for number in range(6)])
    return tmp_path


BOTH = {"train": "train.csv", "validation": "validation.csv"}


def loaded(folder: Path, data: dict[str, Any], kind: type[Words] = Words, **tables: Any) -> Any:
    spec = make_spec(folder, dict(data), **tables)
    return load(spec, kind(spec), folder / "sample")


def test_files_are_loaded_and_checked(folder: Path) -> None:
    spec = make_spec(folder, {"files": BOTH})
    recipe = Words(spec)
    result = load(spec, recipe, folder)
    assert recipe.checked == {"train": 20, "validation": 6}
    assert (result.origin, result.source.type, result.warnings) == ("files", "bert", [])
    assert result.splits["train"]["text"][:2] == ["train 0", "train 1"]
    assert set(result.fingerprint) == {"train", "validation"}
    assert loaded(folder, {"files": BOTH}).fingerprint == result.fingerprint


def test_a_sample_goes_before_everything_else(folder: Path) -> None:
    result = loaded(folder, {"files": BOTH, "sample": True, "columns": {"text": "none"}, "limit": {"train": 1}})
    assert (result.origin, len(result.splits["train"]), len(result.splits["validation"])) == ("sample", 1, 2)
    assert result.source.name == str(folder / "sample")
    assert (folder / "sample" / "config.json").is_file()


def test_a_sample_leaves_a_model_that_is_there_alone_and_fills_in_splits(folder: Path) -> None:
    first = loaded(folder, {"sample": True})
    (folder / "sample" / "config.json").write_text("kept")
    again = loaded(folder, {"sample": True}, evaluate={"splits": ["test"]})
    assert (folder / "sample" / "config.json").read_text() == "kept"
    assert again.fingerprint["test"] == first.fingerprint["validation"]
    assert again.warnings == []
    assert sorted(path.name for path in folder.iterdir()) == ["sample", "train.csv", "validation.csv"]


def test_columns_are_renamed_and_others_give_way(folder: Path) -> None:
    table(folder, "odd.csv", [f"x{n},y{n}" for n in range(3)], header="text,sentence,target")
    data = {"files": {"train": "odd.csv", "validation": "odd.csv"}, "columns": {"text": "sentence", "label": "target"}}
    rows = loaded(folder, data).splits["train"]
    assert (sorted(rows.column_names), rows["text"]) == (["label", "text"], ["y0", "y1", "y2"])


def test_columns_can_change_places(folder: Path) -> None:
    data = {"files": BOTH, "columns": {"text": "label", "label": "text"}}
    assert loaded(folder, data).splits["train"]["label"][0] == "train 0"


def test_splits_are_renamed(folder: Path) -> None:
    data = {"files": {"train": "train.csv", "dev": "validation.csv"}, "splits": {"validation": "dev"}}
    assert len(loaded(folder, data).splits["validation"]) == 6


def test_evaluated_splits_may_be_chosen(folder: Path) -> None:
    data = {"files": {**BOTH, "test": "validation.csv"}}
    assert set(loaded(folder, data, evaluate={"splits": ["test"]}).splits) == {"train", "test"}


def test_limits_take_the_first_rows(folder: Path) -> None:
    result = loaded(folder, {"files": BOTH, "limit": {"train": 3, "validation": 100}})
    assert result.splits["train"]["text"] == ["train 0", "train 1", "train 2"]
    assert len(result.splits["validation"]) == 6


def test_a_limit_of_no_split_is_told(folder: Path) -> None:
    result = loaded(folder, {"files": BOTH, "limit": {"trian": 3}})
    assert result.warnings == ["[data.limit] names 'trian', which is not a split of this run"]


def test_held_out_rows_are_a_function_of_the_seed(folder: Path) -> None:
    data = {"files": {"train": "train.csv"}, "holdout": 0.25}
    first, again, other = (loaded(folder, data, seed=seed).splits for seed in (1, 1, 2))
    assert (len(first["train"]), len(first["validation"])) == (15, 5)
    assert sorted([*first["train"]["text"], *first["validation"]["text"]]) == sorted(f"train {n}" for n in range(20))
    held_out = [list(splits["validation"]["text"]) for splits in (first, again, other)]
    assert held_out[0] == held_out[1] != held_out[2]


def test_a_holdout_that_is_not_needed_is_told(folder: Path) -> None:
    result = loaded(folder, {"files": BOTH, "holdout": 0.5})
    assert len(result.splits["train"]) == 20
    assert result.warnings == ["[data].holdout is not used: the data has all the splits that are measured on"]


def test_overlap_is_counted(folder: Path) -> None:
    table(folder, "leak.csv", ["train 0", "train 1", "new", "train 4", "train 5"])
    result = loaded(folder, {"files": {"train": "train.csv", "validation": "leak.csv"}})
    assert result.warnings == ["split 'validation': 2 of 5 rows are also in 'train': what is measured is too good"]


def test_overlap_is_seen_in_lists_and_tables(folder: Path) -> None:
    rows = [{"text": ["a", number], "label": {"x": [number]}} for number in map(str, range(4))]
    for name, chosen in {"train.jsonl": rows[:3], "validation.jsonl": rows[2:]}.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in chosen))
    result = loaded(folder, {"files": {"train": "train.jsonl", "validation": "validation.jsonl"}})
    assert result.warnings == ["split 'validation': 1 of 2 rows are also in 'train': what is measured is too good"]


def test_one_row_is_enough(folder: Path) -> None:
    table(folder, "one.csv", ["only"])
    assert len(loaded(folder, {"files": {"train": "one.csv", "validation": "validation.csv"}}).splits["train"]) == 1


def test_a_stream_is_typed_and_checked_by_its_first_rows(folder: Path) -> None:
    table(folder, "many.csv", [f"row {number}" for number in range(2500)])
    data = {"files": {"train": "many.csv", "validation": "validation.csv"}, "streaming": True, "limit": {"train": 2000}}
    spec = make_spec(folder, {**data, "columns": {"text": "text"}})
    recipe = Words(spec)
    result = load(spec, recipe, folder)
    train = result.splits["train"]
    assert isinstance(train, IterableDataset)
    assert recipe.checked == {"train": 1000, "validation": 6}
    assert [len(block) for block in blocks(train, 900)] == [900, 900, 200]
    before = result.fingerprint["train"]
    table(folder, "many.csv", ["other"] + [f"row {number}" for number in range(1, 2500)])
    assert loaded(folder, data).fingerprint["train"] != before


REFUSED: dict[str, tuple[dict[str, Any], type[Words], str]] = {
    "missing column": (
        {"files": {"train": "odd.csv", "validation": "odd.csv"}},
        Words,
        r"split 'train', column 'text': the recipe reads 'text' \(a sentence\), but the data has 'texts', 'label'; "
        r"if it has another name: \[data\.columns\] text = \"texts\"",
    ),
    "missing column in validation": (
        {"files": {"train": "train.csv", "validation": "odd.csv"}},
        Words,
        "'validation', column",
    ),
    "wrong mapping": (
        {"files": BOTH, "columns": {"text": "txt"}},
        Words,
        r"\[data\.columns\] text = 'txt', but the data has 'text', 'label'; did you mean 'text'\?",
    ),
    "more fields than the header": (
        {"files": {"train": "wide.csv", "validation": "validation.csv"}},
        Words,
        "split 'train': rows have more fields than the header names",
    ),
    "empty train": ({"files": {"train": "empty.csv", "validation": "validation.csv"}}, Words, "'train': .*no rows"),
    "empty validation": (
        {"files": {"train": "train.csv", "validation": "empty.csv"}},
        Words,
        "'validation': .*no rows",
    ),
    "no validation": (
        {"files": {"train": "train.csv"}},
        Words,
        r"there is no split 'validation' in the data, which has 'train'; .*\[data\]\.holdout = 0\.1",
    ),
    "validation by another name": (
        {"files": {"train": "train.csv", "valid": "validation.csv"}},
        Words,
        r"\[data\.splits\] validation = \"valid\"",
    ),
    "no train": ({"files": {"validation": "validation.csv"}}, Words, "there is no split 'train'"),
    "split that is not there": ({"files": BOTH, "splits": {"validation": "dev"}}, Words, "there is no split 'dev'"),
    "several to hold out": (
        {"files": {"train": "train.csv"}, "holdout": 0.1},
        TwoEvaluations,
        "makes one split out of stored rows, but matched, mismatched are missing",
    ),
    "holdout of one row": ({"files": {"train": "one.csv"}, "holdout": 0.1}, Words, "needs two rows at least"),
    "holdout of a stream": (
        {"files": {"train": "train.csv"}, "holdout": 0.1, "streaming": True},
        Words,
        "rows of a stream can't be set aside",
    ),
    "missing file": ({"files": {**BOTH, "train": "none.csv"}}, Words, "there is no file"),
    "empty stream": (
        {"files": {"train": "empty.jsonl", "validation": "validation.csv"}, "streaming": True},
        Words,
        "no rows",
    ),
    "nothing named": ({}, Words, r"\[data\] names neither a path nor files"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_does_not_fit_is_refused_at_once(name: str, folder: Path) -> None:
    table(folder, "odd.csv", ["x"], header="texts,label")
    table(folder, "one.csv", ["x"])
    table(folder, "wide.csv", ["x,y"])
    (folder / "empty.csv").write_text("text,label\n")
    (folder / "empty.jsonl").write_text("")
    data, kind, message = REFUSED[name]
    started = time.process_time()
    with pytest.raises(DataError, match=message):
        loaded(folder, data, kind)
    assert time.process_time() - started < 2


def test_nothing_is_missing_where_all_is_local(folder: Path) -> None:
    assert missing(make_spec(folder, {"files": BOTH})) is None


def test_with_sample_data_nothing_is_missing(folder: Path) -> None:
    assert missing(make_spec(folder, {"path": "org/none", "sample": True}, model={"name": "org/none"})) is None


MISSING = """
import json, sys, time
started = time.monotonic()
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.data.load import missing
import taskrecipe.core.errors as errors
spec = Spec.model_validate(json.loads(sys.argv[1]))
started = time.monotonic()
try:
    print(json.dumps([missing(spec), time.monotonic() - started, sorted({"torch", "datasets"} & set(sys.modules))]))
except errors.DataError as error:
    print(json.dumps([f"error: {error}", time.monotonic() - started, []]))
"""


def reason_for_missing(spec: Spec, folder: Path) -> tuple[str, float, list[str]]:
    """What a process of its own says of a spec whose hub does not answer, in how many seconds, and by which imports."""
    content = json.dumps(spec.model_dump(mode="json", exclude_unset=True))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(folder), "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-W", "error", "-c", MISSING, content]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    reason, seconds, heavy = json.loads(done.stdout)
    return reason, seconds, heavy


@pytest.mark.parametrize(("offline", "start"), [("sample", "model 'org/none'"), ("error", "error: model 'org/none'")])
def test_an_unreachable_hub_is_an_error_or_a_reason(offline: str, start: str, folder: Path) -> None:
    spec = make_spec(folder, {"path": "org/data", "offline": offline}, model={"name": "org/none"})
    reason, seconds, heavy = reason_for_missing(spec, folder)
    assert reason.startswith(start)
    assert "http://127.0.0.1:9 can't be reached" in reason
    assert seconds < 3
    assert heavy == []


INNER = {"recipe": "glue", "task": {"name": "sst2"}}
NESTED = {
    "a teacher": ("distillation", {"teacher": "org/teacher", "inner": INNER}, "model 'org/teacher'"),
    "a teacher within": (
        "adversarial",
        {"inner": {"recipe": "distillation", "task": {"teacher": "org/teacher", "inner": INNER}}},
        "model 'org/teacher'",
    ),
    "the rows of a part": (
        "multitask",
        {"tasks": {"local": {**INNER, "data": {"files": BOTH}}, "far": {**INNER, "data": {"path": "org/rows"}}}},
        "data set 'org/rows'",
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_a_recipe_needs_besides_is_asked_for_too(name: str, folder: Path) -> None:
    recipe, task, start = NESTED[name]
    data = {"offline": "sample"} | ({} if recipe == "multitask" else {"files": BOTH})
    reason, _, heavy = reason_for_missing(make_spec(folder, data, recipe=recipe, task=task), folder)
    assert reason.startswith(start)
    assert heavy == []


class Taught(Words):
    """Reads a model besides the one that is trained."""

    def models(self) -> list[ModelSource]:
        return [ModelSource("org/teacher")]


def test_further_models_are_fetched_with_the_data(folder: Path) -> None:
    with pytest.raises(DataError, match="model 'org/teacher' is not in the cache"):
        loaded(folder, {"files": BOTH}, Taught)
