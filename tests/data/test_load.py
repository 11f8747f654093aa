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
import torch  # noqa: F401 - the first stream of a process imports it, which is not to be measured
from datasets import Dataset, IterableDataset
from typing_extensions import override

from taskrecipe.data.load import load_data, missing_from_hub
from taskrecipe.data.streams import read_blocks
from taskrecipe.errors import DataError
from taskrecipe.recipe import Column, Recipe, Splits
from taskrecipe.spec.spec import Spec


class Words(Recipe):
    """Texts with a label."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.checked: dict[str, int] = {}

    @override
    def columns(self) -> dict[str, Column]:
        return {"text": Column("a sentence"), "label": Column("a class"), "weight": Column("a number", required=False)}

    @override
    def sample(self, folder: Path) -> Splits:
        (folder / "config.json").write_text("{}")
        return {name: Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}) for name in ("train", "validation")}

    @override
    def check(self, rows: Dataset, split: str) -> None:
        self.checked[split] = len(rows)


class TwoEvaluations(Words):
    """Measured on two splits, as MNLI is."""

    @override
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
    return load_data(spec, kind(spec), folder / "sample")


def test_files_are_loaded_and_checked(folder: Path) -> None:
    spec = make_spec(folder, {"files": BOTH})
    recipe = Words(spec)
    result = load_data(spec, recipe, folder)
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
    assert again.warnings == ["[model].type is not used: the sample brings its own tiny model"]
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
    assert result.warnings == ["[data].holdout is not used: the data has every split that is evaluated"]


def test_overlap_is_counted(folder: Path) -> None:
    table(folder, "leak.csv", ["train 0", "train 1", "new", "train 4", "train 5"])
    result = loaded(folder, {"files": {"train": "train.csv", "validation": "leak.csv"}})
    assert result.warnings == [
        "split 'validation': 2 of 5 rows are also in 'train': metrics on this split will be too optimistic"
    ]


def test_overlap_is_seen_in_lists_and_tables(folder: Path) -> None:
    rows = [{"text": ["a", number], "label": {"x": [number]}} for number in map(str, range(4))]
    for name, chosen in {"train.jsonl": rows[:3], "validation.jsonl": rows[2:]}.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in chosen))
    result = loaded(folder, {"files": {"train": "train.jsonl", "validation": "validation.jsonl"}})
    assert result.warnings == [
        "split 'validation': 1 of 2 rows are also in 'train': metrics on this split will be too optimistic"
    ]


def test_one_row_is_enough(folder: Path) -> None:
    table(folder, "one.csv", ["only"])
    assert len(loaded(folder, {"files": {"train": "one.csv", "validation": "validation.csv"}}).splits["train"]) == 1


def test_a_stream_is_typed_and_checked_by_its_first_rows(folder: Path) -> None:
    table(folder, "many.csv", [f"row {number}" for number in range(2500)])
    data = {"files": {"train": "many.csv", "validation": "validation.csv"}, "streaming": True, "limit": {"train": 2000}}
    spec = make_spec(folder, {**data, "columns": {"text": "text"}})
    recipe = Words(spec)
    result = load_data(spec, recipe, folder)
    train = result.splits["train"]
    assert isinstance(train, IterableDataset)
    assert recipe.checked == {"train": 1000, "validation": 6}
    assert [len(block) for block in read_blocks(train, 900)] == [900, 900, 200]
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
        r"split 'train': '.*wide\.csv': line 2 has 3 fields, but the header has 2",
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
    "holdout of one row": ({"files": {"train": "one.csv"}, "holdout": 0.1}, Words, "needs at least two rows"),
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


class Picky(Words):
    """Refuses rows whose text starts with "bad"."""

    @override
    def check(self, rows: Dataset, split: str) -> None:
        for row, text in enumerate(rows["text"]):
            if text.startswith("bad"):
                raise DataError(f"{text!r} is bad", split=split, row=row, column="text")


def test_errors_about_rows_name_the_record_and_line_of_their_file(folder: Path) -> None:
    (folder / "train.csv").write_text('text,label\n"over two\nlines",0\n\nbad,1\n')
    with pytest.raises(DataError, match=r"^split 'train', '.*train\.csv' record 2 \(line 5\), column") as found:
        loaded(folder, {"files": BOTH}, Picky)
    assert (found.value.split, found.value.row, found.value.column) == ("train", 1, "text")


@pytest.mark.parametrize("limit", [{}, {"validation": 3}])
def test_held_out_rows_keep_the_numbers_of_their_file(limit: dict[str, int], folder: Path) -> None:
    texts = [f"train {number}" for number in range(20)]
    data = {"files": {"train": "train.csv"}, "holdout": 0.25, "limit": limit}
    held_out = loaded(folder, data).splits["validation"]["text"][2]
    number = texts.index(held_out)
    texts[number] = "bad"
    table(folder, "train.csv", texts)
    place = rf"train\.csv' record {number + 1} \(line {number + 2}\), column 'text'"
    with pytest.raises(DataError, match=rf"^split 'validation', '.*{place}"):
        loaded(folder, data, Picky)


def test_records_are_counted_in_each_of_several_files(folder: Path) -> None:
    table(folder, "part-1.csv", ["a", "b"])
    table(folder, "part-2.csv", ["c", "bad"])
    with pytest.raises(DataError, match=r"part-2\.csv' record 2 \(line 3\)"):
        loaded(folder, {"files": {"train": "part-*.csv", "validation": "validation.csv"}}, Picky)


FORMATS: dict[str, tuple[str, str]] = {
    "rows.jsonl": ('{"text": "a", "label": 0}\n\n{"text": "bad", "label": 1}\n', r"record 2 \(line 3\)"),
    "rows.json": ('[{"text": "a", "label": 0},\n {"text": "bad", "label": 1}]', "record 2, column"),
    "rows.tsv": ("text\tlabel\na\t0\nbad\t1\n", r"record 2 \(line 3\)"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_records_are_named_in_every_format(name: str, folder: Path) -> None:
    content, place = FORMATS[name]
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=f"'.*{name}' {place}"):
        loaded(folder, {"files": {"train": name, "validation": "validation.csv"}}, Picky)


def test_problems_of_all_splits_are_reported_together(folder: Path) -> None:
    table(folder, "train.csv", ["a", "bad"])
    table(folder, "validation.csv", ["b", "bad too"])
    with pytest.raises(DataError, match=r"there are 2 problems:\n  split 'train', .*\n  split 'validation', .*"):
        loaded(folder, {"files": BOTH}, Picky)
    (folder / "train.csv").write_text("text,label\na\n")
    with pytest.raises(DataError, match=r"2 problems:\n  .*there is no file '.*none.*\n  split 'train': .*line 2"):
        loaded(folder, {"files": {"train": "train.csv", "validation": "none.csv"}})


def test_columns_that_all_splits_lack_are_reported_together(folder: Path) -> None:
    for name in ("train.csv", "validation.csv"):
        table(folder, name, ["a", "b"], header="words,label")
    with pytest.raises(DataError, match=r"2 problems:\n  split 'train', column 'text'.*\n  split 'validation', column"):
        loaded(folder, {"files": BOTH})


def test_files_of_some_evaluated_splits_are_enough(folder: Path) -> None:
    files = {"train": "train.csv", "validation_matched": "validation.csv"}
    result = loaded(folder, {"files": files}, TwoEvaluations)
    assert set(result.splits) == {"train", "matched"}
    message = "[data.files] names no 'validation_mismatched', so the split 'mismatched' is not evaluated"
    assert result.warnings == [message]


def test_columns_without_names_are_given_names(folder: Path) -> None:
    for name in ("train.tsv", "validation.tsv"):
        (folder / name).write_text(f"{name}\t0\tone\n{name}\t1\ttwo {name}\n")
    data = {"files": {"train": "train.tsv", "validation": "validation.tsv"}, "header": False}
    found = loaded(folder, {**data, "columns": {"text": "2", "label": "1"}}).splits["train"]
    assert (list(found["text"]), list(found["label"])) == (["one", "two train.tsv"], [0, 1])


def test_nothing_is_missing_where_all_is_local(folder: Path) -> None:
    assert missing_from_hub(make_spec(folder, {"files": BOTH})) is None


def test_with_sample_data_nothing_is_missing(folder: Path) -> None:
    assert missing_from_hub(make_spec(folder, {"path": "org/none", "sample": True}, model={"name": "org/none"})) is None


MISSING = """
import json, sys, time
started = time.monotonic()
from taskrecipe.spec.spec import Spec
from taskrecipe.data.load import missing_from_hub
import taskrecipe.errors as errors
spec = Spec.model_validate(json.loads(sys.argv[1]))
started = time.monotonic()
try:
    missing = missing_from_hub(spec)
    print(json.dumps([missing, time.monotonic() - started, sorted({"torch", "datasets"} & set(sys.modules))]))
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


GLUE = {"recipe": "glue", "task": {"name": "sst2"}}
FAR = {**GLUE, "data": {"path": "org/rows"}}
ELSEWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "a teacher": ({"techniques": [{"name": "distillation", "teacher": "org/teacher"}]}, "model 'org/teacher'"),
    "a teacher after another technique": (
        {"techniques": [{"name": "adversarial"}, {"name": "distillation", "teacher": "org/teacher"}]},
        "model 'org/teacher'",
    ),
    "the rows of a part": (
        {"recipe": "multitask", "task": {"tasks": {"local": {**GLUE, "data": {"files": BOTH}}, "far": FAR}}},
        "data set 'org/rows'",
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_a_run_needs_besides_its_model_is_looked_for_too(name: str, folder: Path) -> None:
    tables, start = ELSEWHERE[name]
    data = {"offline": "sample"} | ({} if "recipe" in tables else {"files": BOTH})
    reason, _, heavy = reason_for_missing(make_spec(folder, data, **tables), folder)
    assert reason.startswith(start)
    assert heavy == []


def test_models_of_techniques_are_fetched_with_the_data(folder: Path) -> None:
    technique = {"name": "distillation", "teacher": "org/teacher"}
    with pytest.raises(DataError, match="model 'org/teacher' is not in the cache"):
        loaded(folder, {"files": BOTH}, techniques=[technique])
