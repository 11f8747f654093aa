"""A second run on the same data reads and checks nothing again, finds the same, and notices every change."""

from __future__ import annotations

import os
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, Features
from datasets import Image as ImageFeature
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from taskrecipe.data import cache_entry, image_facts, load, overlap, row_digest, tables
from taskrecipe.data.cache_text import ENDING
from taskrecipe.data.checks import check_rows, learn_from_rows
from taskrecipe.data.load import Loaded, load_data
from taskrecipe.data.row_hash import hash_rows
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe
from taskrecipe.spec.spec import Spec
from taskrecipe.system.python_warnings import collect_warnings
from taskrecipe.text import language_modeling

ROWS = 40_000
"""Enough for more than a megabyte: what is smaller is quicker to read again than to look up."""


def write_table(path: Path, rows: int = ROWS, start: int = 0) -> Path:
    lines = (f"a sentence of some length, number {start + n},{n % 2}\n" for n in range(rows))
    path.write_text("sentence,label\n" + "".join(line.replace(", number", " number") for line in lines))
    return settle(path)


def settle(path: Path) -> Path:
    """Let a file look as if it was written a while ago: what is new may still change."""
    old = path.stat().st_mtime - 60
    os.utime(path, (old, old))
    return path


def glue_spec(folder: Path, **data: Any) -> Spec:
    files = {"train": str(folder / "train.csv"), "validation": str(folder / "validation.csv")}
    return Spec.model_validate(
        {
            "spec_version": 1,
            "recipe": "glue",
            "task": {"name": "single"},
            "model": {"type": "bert"},
            "data": {"files": files, **data},
            "train": {"updates": 1, "batch_size": 4, "learning_rate": 1e-3},
        }
    )


def load_glue(folder: Path, **data: Any) -> tuple[Loaded, Recipe]:
    spec = glue_spec(folder, **data)
    recipe = installed().recipe("glue")(spec)
    return load_data(spec, recipe, folder / "sample"), recipe


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_table(tmp_path / "train.csv")
    write_table(tmp_path / "validation.csv", 100, start=ROWS - 10)
    return tmp_path


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what passes over all rows."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(tables, "_read_texts")
    count(row_digest, "_fingerprint")
    count(overlap, "hash_rows")
    count(installed().recipe("glue"), "learn")
    count(installed().recipe("glue"), "check")
    return counts


@pytest.mark.parametrize("changes", [{}, {"limit": {"train": ROWS - 5}}, {"columns": {"label": "label"}}])
def test_the_second_run_makes_no_pass_over_large_rows(
    data: Path, passes: Counter[str], changes: dict[str, Any]
) -> None:
    first, recipe = load_glue(data, **changes)
    assert passes["_read_texts"] == 2
    passes.clear()
    second, again = load_glue(data, **changes)
    # The small split is quicker to read than to look up.
    assert passes == {"_read_texts": 1, "_fingerprint": 1, "check": 1}
    assert second.fingerprint == first.fingerprint
    assert second.warnings == first.warnings
    assert [note for note in second.warnings if "rows are also in 'train'" in note]
    assert (again.labels, vars(again).keys()) == (recipe.labels, vars(recipe).keys())
    assert second.splits["train"][:] == first.splits["train"][:]


@pytest.mark.parametrize("change", ["a cell", "a row more", "the same size and time"])
def test_a_change_of_the_file_is_noticed(data: Path, passes: Counter[str], change: str) -> None:
    first, _ = load_glue(data)
    path = data / "train.csv"
    before = path.stat()
    text = path.read_text()
    if change == "a row more":
        path.write_text(text + "one more,1\n")
    else:
        path.write_text(text.replace("number 17,", "number 71,", 1))
    if change == "the same size and time":
        copy = data / "copy.csv"  # another inode
        copy.write_text(path.read_text())
        copy.replace(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    passes.clear()
    second, _ = load_glue(data)
    assert passes["_read_texts"] == 2
    assert second.fingerprint["train"] != first.fingerprint["train"]


def entry_of(folder: Path) -> Path:
    (entry,) = (path.parent for path in folder.glob(f"*/{cache_entry.ROWS}"))
    return entry


def test_a_damaged_table_is_read_again(data: Path, passes: Counter[str]) -> None:
    first, _ = load_glue(data)
    rows = entry_of(Path(os.environ["TASKRECIPE_CACHE"])) / cache_entry.ROWS
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    passes.clear()
    second, _ = load_glue(data)
    assert passes["_read_texts"] == 2
    assert [note for note in second.warnings if "are damaged and are made again" in note]
    assert second.fingerprint == first.fingerprint


def test_a_full_disk_costs_the_cache_and_not_the_rows(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    expected, _ = load_glue(data)
    for path in Path(os.environ["TASKRECIPE_CACHE"]).glob("*/*"):
        path.unlink()
    for path in Path(os.environ["TASKRECIPE_CACHE"]).glob("*/"):
        path.rmdir()
    monkeypatch.setattr(tables, "write_entry", no_room)
    loaded, _ = load_glue(data)
    assert [note for note in loaded.warnings if "are not cached" in note]
    assert loaded.fingerprint == expected.fingerprint


def test_cells_get_the_types_that_all_of_them_have(tmp_path: Path) -> None:
    """The types of a large table are found part by part; they are those of the same table read at once."""
    values = {
        "whole": lambda n: str(n),
        "number": lambda n: "1.5" if n == ROWS - 1 else str(n),
        "text": lambda n: "x" if n == ROWS - 1 else str(n),
        "large": lambda n: str(2**70 + n),
        "truth": lambda n: "true" if n % 2 else "false",
        "rare": lambda n: "7" if n == ROWS - 1 else "",
    }
    path = tmp_path / "cells.csv"
    lines = [",".join(values), *(",".join(make(n) for make in values.values()) for n in range(ROWS))]
    path.write_text("\n".join(lines) + "\n")
    options = glue_spec(tmp_path).data
    stored = tables.load_table([path], "csv", "train", options)
    assert stored.cache_files
    held = tables._read_table([path], "csv", "train", options)
    assert stored.features == held.features
    kinds = {name: feature.dtype for name, feature in stored.features.items()}
    assert kinds == {
        "whole": "int64",
        "number": "float64",
        "text": "string",
        "large": "string",
        "truth": "bool",
        "rare": "int64",
    }
    assert row_digest.fingerprint(stored) == row_digest.fingerprint(held)


def measure_memory(work: Callable[[], Any]) -> int:
    """The peak of Python's memory while `work` runs, and what Arrow holds afterwards."""
    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes()
        kept = work()
        held = pa.total_allocated_bytes() - before
        del kept
        return tracemalloc.get_traced_memory()[1] + held
    finally:
        tracemalloc.stop()


def test_memory_hardly_grows_with_the_rows(tmp_path: Path) -> None:
    """Reading, hashing and checking rows takes a few numbers for each, never its texts."""
    sizes = []
    for number, rows in enumerate((ROWS, ROWS, 4 * ROWS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_table(folder / "train.csv", rows)
        write_table(folder / "validation.csv", 100, start=10**7)
        sizes.append(measure_memory(lambda folder=folder: load_glue(folder)))
    assert (sizes[2] - sizes[1]) / (3 * ROWS) < 40  # the first also imports


class Watched(Recipe):
    """Counts how often it looks at rows."""

    def __init__(self, kept: Any) -> None:
        super().__init__(glue_spec(Path()))
        self.kept = kept

    looked: list[str] = []  # noqa: RUF012

    def learn(self, rows: Dataset) -> None:
        self.looked.append("learn")
        self.found, self.labels = self.kept, ["a", "b"]

    def check(self, rows: Dataset, split: str) -> None:
        self.looked.append(split)
        warnings.warn("odd", stacklevel=2)


LARGE = Dataset.from_dict({"text": ["some text"] * 200_000})


@pytest.mark.parametrize(
    ("kept", "again"), [(3, []), ({"a": [1, None]}, []), ((1, 2), ["learn"]), (LARGE, ["learn"]), ({1: 2}, ["learn"])]
)
def test_only_plain_values_are_recalled(kept: Any, again: list[str]) -> None:
    """What JSON would change is learned again."""
    for expected in (["learn", "train"], again):
        Watched.looked.clear()
        recipe = Watched(kept)
        with collect_warnings() as notes:
            learn_from_rows(recipe, LARGE)
            check_rows(recipe, LARGE, "train")
        assert Watched.looked == expected
        assert (recipe.found, recipe.labels, notes) == (kept, ["a", "b"], ["odd"])


Cell = st.one_of(st.none(), st.text(max_size=4), st.sampled_from(["\0", "\0\0", "", "ab", "ba"]))
Table = st.lists(st.tuples(Cell, Cell, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))), max_size=12)


@given(Table)
def test_hashes_are_equal_exactly_where_rows_are(values: list[tuple[Any, ...]]) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.large_string()), ("c", pa.int64())])
    columns = list(zip(*values, strict=True)) or [(), (), ()]
    rows = Dataset(pa.table([pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)], schema=schema))
    hashes = hash_rows(rows, ["a", "b", "c"])
    for n, one in enumerate(values):
        for m, other in enumerate(values):
            assert (hashes[n] == hashes[m]) == (one == other)


def test_equal_numbers_are_equal_in_any_type() -> None:
    whole, floats = Dataset.from_dict({"n": [0, 1, -3]}), Dataset.from_dict({"n": [-0.0, 1.0, -3.0]})
    assert (hash_rows(whole, ["n"]) == hash_rows(floats, ["n"])).all()


def test_lists_and_images_are_hashed_too() -> None:
    rows = Dataset.from_dict({"n": [[1, 2], [1], [1, 2], []], "s": [{"x": 1}, {"x": 2}, {"x": 1}, {"x": None}]})
    first, second, third, fourth = hash_rows(rows, ["n", "s"])
    assert first == third
    assert len({first, second, fourth}) == 3


def test_a_tokenizer_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    real = language_modeling._train_backend
    monkeypatch.setattr(language_modeling, "_train_backend", lambda *args: trained.append(1) or real(*args))
    rows = Dataset.from_dict({"text": ["some words to learn", "and some more words"] * 20})

    def train(size: int = 300) -> str:
        made = language_modeling._train_once(rows, size, language_modeling.CAUSAL_TOKENS)
        return str(made.backend_tokenizer.to_str())

    assert train() == train()
    assert len(trained) == 1
    assert train(301) != ""
    assert len(trained) == 2
    for path in Path(os.environ["TASKRECIPE_CACHE"]).glob(f"*{ENDING}"):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="is damaged and is made again"):
        train()
    assert len(trained) == 3


def test_an_image_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = image_facts.check_image
    monkeypatch.setattr(image_facts, "check_image", lambda source: opened.append(source["path"]) or real(source))
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        Image.effect_noise((20 + number, 30), 50).save(path)
        settle(path)

    def inspect(chosen: list[Path]) -> list[Any]:
        rows = Dataset.from_dict({"image": list(map(str, chosen))}, features=Features({"image": ImageFeature()}))
        return image_facts.inspect_images(rows, "train")

    first = inspect(paths[:4])
    assert len(opened) == 4
    assert inspect(paths)[:4] == first
    assert opened[4:] == [str(paths[4])]
    Image.effect_noise((99, 30), 50).save(paths[0])
    assert inspect(paths)[0].width == 99


def test_splits_are_loaded_the_same_by_any_process(data: Path, passes: Counter[str]) -> None:
    """Where the main process has prepared the rows, another one maps the same files."""
    first, _ = load_glue(data)
    second, _ = load_glue(data)
    assert first.splits["train"].cache_files == second.splits["train"].cache_files != []
    assert np.array_equal(first.splits["train"][:10]["label"], second.splits["train"][:10]["label"])
    assert load.fingerprint(first.splits["train"]) == second.fingerprint["train"]
