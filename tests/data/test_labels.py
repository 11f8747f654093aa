"""Labels: the same names whatever they are stored as, and every wrong one refused with its row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetInfo, Features

from taskrecipe.data.labels import align_labels, check_classes, check_numbers, label_ids, learn_classes
from taskrecipe.errors import DataError

YES_NO = ClassLabel(names=["no", "yes"])


def class_names(splits: dict[str, Dataset], column: str) -> list[str]:
    """Learn the classes from the training rows, and check every split."""
    names = learn_classes(splits["train"], column)
    for split, found in splits.items():
        check_classes(found, split, column, names)
    return names


def rows(values: list[Any], feature: Any = None) -> Dataset:
    if feature is None:
        return Dataset.from_dict({"label": values})
    # As a parquet file would: from_dict checks the range itself.
    return Dataset(pa.table({"label": values}), info=DatasetInfo(features=Features({"label": feature})))


NAMED = {
    "texts, sorted": ({"train": rows(["b", "a", "b"])}, ["a", "b"]),
    "numbers, by value": ({"train": rows([10, 9, 10])}, ["9", "10"]),
    "truth values": ({"train": rows([True, False])}, ["false", "true"]),
    "declared": ({"train": rows([1, 0], YES_NO)}, ["no", "yes"]),
    "declared, one row": ({"train": rows([1], YES_NO)}, ["no", "yes"]),
    "stored differently": ({"train": rows([0, 1]), "validation": rows(["1", "0"])}, ["0", "1"]),
    "declared in another order": (
        {"train": rows([1, 0], YES_NO), "validation": rows([0, 1], ClassLabel(names=["yes", "no"]))},
        ["no", "yes"],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_are_found(name: str) -> None:
    splits, names = NAMED[name]
    assert class_names(splits, "label") == names


TWO = rows(["a", "b"])
REFUSED: dict[str, tuple[dict[str, Dataset], tuple[str, int | None], str]] = {
    "none": ({"train": rows(["a", None, "b"])}, ("train", 1), "there is no value"),
    "none in validation": ({"train": TWO, "validation": rows(["a", None])}, ("validation", 1), "there is no value"),
    "not a number": ({"train": rows([0.0, float("nan")])}, ("train", 1), "there is no value"),
    "float": ({"train": rows([0.0, 1.0, 0.5])}, ("train", 2), "0.5 is a float"),
    "whole float": ({"train": rows([0.0, 1.0])}, ("train", 0), "0.0 is a float"),
    "secret": (
        {"train": rows([0, 1, -1], YES_NO)},
        ("train", 2),
        "-1 is not the number of a class, 0 to 1; -1 usually means",
    ),
    "out of range": ({"train": rows([0, 5, 1], YES_NO)}, ("train", 1), "5 is not the number of a class, 0 to 1"),
    "unseen in training": ({"train": TWO, "validation": rows(["a", "c"])}, ("validation", 1), "'c' is not among"),
    "one class": ({"train": rows(["a", "a"])}, ("train", None), "only one class, 'a'"),
    "one of the declared": ({"train": rows([1, 1], YES_NO)}, ("train", None), "only one class, 'yes'"),
    "lists": ({"train": rows([[0], [1]])}, ("train", 0), r"\[0\] is not a class"),
    "tables": ({"train": rows([{"a": 0}, {"a": 1}])}, ("train", 0), "is not a class"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_labels_are_refused(name: str) -> None:
    splits, place, message = REFUSED[name]
    with pytest.raises(DataError, match=message) as caught:
        class_names(splits, "label")
    assert (caught.value.split, caught.value.row, caught.value.column) == (*place, "label")


def test_a_mixture_of_texts_and_numbers_is_refused(tmp_path: Any) -> None:
    from taskrecipe.data.files import read_files
    from taskrecipe.spec.spec import Data

    path = tmp_path / "a.jsonl"
    path.write_text('{"label": 1}\n{"label": "x"}\n')
    train = read_files(Data(files={"train": str(path)}), ["train"])["train"]
    with pytest.raises(DataError, match="all rows must have a text, or all a whole number"):
        class_names({"train": train}, "label")


def test_ids_follow_the_order_of_names() -> None:
    for stored in (rows(["no", "yes", "no"]), rows([0, 1, 0], YES_NO)):
        assert label_ids(stored, "label", ["yes", "no"]).tolist() == [1, 0, 1]
    assert rows([3, 7]).add_column("id", label_ids(rows([3, 7]), "label", ["3", "7"]))["id"] == [0, 1]


def test_a_models_own_order_of_the_same_names_is_taken() -> None:
    def config(*names: str) -> Any:
        return SimpleNamespace(id2label=dict(enumerate(names)))

    ours = ["contradiction", "entailment", "neutral"]
    assert align_labels(ours, config("ENTAILMENT", "NEUTRAL", "CONTRADICTION")) == [
        "entailment",
        "neutral",
        "contradiction",
    ]
    assert align_labels(ours, config("LABEL_0", "LABEL_1", "LABEL_2")) == ours
    assert align_labels(ours, config("entailment", "neutral")) == ours
    assert align_labels(ours, SimpleNamespace(id2label=None)) == ours


NUMBERS: dict[str, tuple[list[Any], int, str]] = {
    "none": ([1.0, None], 1, "there is no value"),
    "nan": ([float("nan"), 1.0], 0, "there is no value"),
    "infinite": ([1.0, 2.0, float("-inf")], 2, "-inf is not finite"),
    "text": (["1.0"], 0, "'1.0' is not a number"),
    "truth values": ([True], 0, "True is not a number"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_targets_must_be_finite_numbers(name: str) -> None:
    values, row, message = NUMBERS[name]
    with pytest.raises(DataError, match=message) as caught:
        check_numbers(rows(values), "train", "label")
    assert caught.value.row == row


def test_whole_numbers_are_numbers() -> None:
    check_numbers(rows([1, 2]), "train", "label")
