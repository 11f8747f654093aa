"""The fingerprint depends on values and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, Value, concatenate_datasets
from datasets import Image as ImageFeature
from PIL import Image

from taskrecipe.data.images import keep_encoded
from taskrecipe.data.row_digest import fingerprint

ROWS = {
    "text": ["a", None, "", "Größe", "b"],
    "number": [1, 2, None, 4, 5],
    "share": [0.5, float("nan"), None, -0.0, 1e300],
    "flag": [True, None, False, True, True],
    "tokens": [[1, 2], [], None, [3], [4, 5, 6]],
    "nested": [{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}, {"a": 2, "b": None}, {"a": 3, "b": ["y", "z"]}],
    "raw": [b"\0", b"", None, b"ab", b"c"],
}


def test_it_is_the_same_in_every_run() -> None:
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    assert fingerprint(rows) == "c3217c6937e000760b635997d18eb3d2488341fd56322a3506111d9c52e1dfc1"


def test_how_rows_are_stored_does_not_matter(tmp_path: Path) -> None:
    rows = Dataset.from_dict(ROWS)
    rows.to_parquet(tmp_path / "rows.parquet")
    features = Features({**rows.features, "text": Value("large_string")})
    same = {
        "chunks": concatenate_datasets([rows.select([0]), rows.select([1, 2]), rows.select([3, 4])]),
        "indices": rows.select([4, 3, 2, 1, 0]).select([4, 3, 2, 1, 0]),
        "order of columns": rows.select_columns(list(reversed(rows.column_names))),
        "another type of text": rows.cast(features),
        "a file": Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path)),
    }
    assert {name: fingerprint(other) for name, other in same.items()} == dict.fromkeys(same, fingerprint(rows))


@pytest.mark.parametrize("column", ROWS)
def test_every_value_matters(column: str) -> None:
    rows = Dataset.from_dict(ROWS)
    for row, value in enumerate(ROWS[column]):
        others = [other for other in ROWS[column] if other != value]
        changed = {**ROWS, column: [*ROWS[column][:row], others[0], *ROWS[column][row + 1 :]]}
        assert fingerprint(Dataset.from_dict(changed, features=rows.features)) != fingerprint(rows)


def test_names_types_and_order_matter() -> None:
    rows = Dataset.from_dict({"a": [1, 2]})
    others = [
        rows.rename_column("a", "b"),
        rows.select([1, 0]),
        rows.select([0]),
        rows.cast_column("a", Value("int32")),
        rows.cast_column("a", ClassLabel(names=["x", "y", "z"])),
        rows.cast_column("a", ClassLabel(names=["x", "y", "w"])),
    ]
    assert len({fingerprint(other) for other in [rows, *others]}) == 7


ALIKE: dict[str, tuple[list[Any], list[Any]]] = {
    "texts cut elsewhere": (["ab", "c"], ["a", "bc"]),
    "lists cut elsewhere": ([["a"], ["b"]], [["a", "b"], []]),
    "lists within lists cut elsewhere": ([[[1], [2]]], [[[1, 2], []]]),
    "no text, an empty text": (["a", None], ["a", ""]),
    "no number, zero": ([1, None], [1, 0]),
    "no list, an empty list": ([[1], None], [[1], []]),
    "nothing, nothing in it": ([{"a": 1}, None], [{"a": 1}, {"a": None}]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_values_that_look_alike_in_memory_are_told_apart(name: str) -> None:
    one, other = (Dataset.from_dict({"a": values}) for values in ALIKE[name])
    assert one.features == other.features
    assert fingerprint(one) != fingerprint(other)


def _image_rows(path: Path, color: int) -> Dataset:
    path.parent.mkdir()
    Image.new("L", (4, 4), color).save(path)
    return Dataset.from_dict({"image": [str(path)]}, features=Features({"image": ImageFeature()}))


def test_images_count_by_content_not_by_place(tmp_path: Path) -> None:
    first, moved = _image_rows(tmp_path / "one" / "a.png", 1), _image_rows(tmp_path / "two" / "b.png", 1)
    changed = _image_rows(tmp_path / "three" / "a.png", 2)
    content = (tmp_path / "one" / "a.png").read_bytes()
    stored = Dataset.from_dict({"image": [{"bytes": content, "path": None}]}, features=first.features)
    assert fingerprint(first) == fingerprint(moved)
    assert fingerprint(first) == fingerprint(keep_encoded(first))
    assert fingerprint(first) == fingerprint(stored)
    assert fingerprint(first) != fingerprint(changed)


def test_a_byte_in_the_middle_of_an_image_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.bmp"
    content = bytearray(20_000)

    def rows() -> Dataset:
        path.write_bytes(content)
        return Dataset.from_dict({"image": [str(path)]}, features=Features({"image": ImageFeature()}))

    before = fingerprint(rows())
    content[10_000] = 1
    assert fingerprint(rows()) != before
