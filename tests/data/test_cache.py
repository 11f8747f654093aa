"""Preprocessed rows are made once, and again whenever what they are made of has changed or the entry is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset, IterableDataset
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from taskrecipe.data import cache, cache_entry
from taskrecipe.data.cache import map_rows, preprocess_splits
from taskrecipe.data.cache_folder import MARK, PREFIX, make_temporary_folder
from taskrecipe.model import ModelSource
from taskrecipe.recipe import Recipe
from taskrecipe.spec.table import TaskOptions
from taskrecipe.system.python_warnings import collect_warnings

SOURCE = ModelSource(None, type="bert")


class Lengths(Recipe):
    """Counts letters, and how often it does."""

    class Options(TaskOptions):
        """None but one."""

        factor: int = 1

    def __init__(self, factor: int = 1) -> None:
        self.options = self.Options(factor=factor)
        self.processor: Any = None
        self.labels: list[str] = []
        self.made: list[str] = []

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        self.made.append(split)
        if "odd" in rows["text"]:
            warnings.warn("one text is odd", stacklevel=2)
        factor = self.options.factor
        return map_rows(rows, lambda batch: {"length": [factor * len(text) for text in batch["text"]]})


def texts(*values: str) -> dict[str, Any]:
    return {"train": Dataset.from_dict({"text": list(values)})}


def tokenizer(*words: str) -> Any:
    vocabulary = {word: number for number, word in enumerate(("[UNK]", "[PAD]", *words))}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def entries() -> list[Path]:
    return sorted(path for path in Path(os.environ["TASKRECIPE_CACHE"]).iterdir() if not path.name.startswith("."))


def test_rows_are_made_once() -> None:
    first, second = Lengths(), Lengths()
    made = preprocess_splits(first, texts("a", "bcd"), SOURCE)["train"]
    again = preprocess_splits(second, texts("a", "bcd"), SOURCE)["train"]
    assert made["length"] == again["length"] == [1, 3]
    assert (first.made, second.made) == (["train"], [])
    assert len(entries()) == 1


def changed(**attributes: Any) -> Callable[[], Recipe]:
    def make() -> Recipe:
        recipe = Lengths(attributes.pop("factor", 1))
        vars(recipe).update(attributes)
        return recipe

    return make


OTHERS: dict[str, tuple[Callable[[], Recipe], dict[str, Any], ModelSource]] = {
    "rows": (Lengths, texts("a", "bce"), SOURCE),
    "options": (changed(factor=2), texts("a", "bcd"), SOURCE),
    "labels": (changed(labels=["x"]), texts("a", "bcd"), SOURCE),
    "processor": (changed(processor=tokenizer("b")), texts("a", "bcd"), SOURCE),
    "several processors": (changed(processor={"a": tokenizer("a")}), texts("a", "bcd"), SOURCE),
    "inner recipe": (changed(inner=[Lengths(3)]), texts("a", "bcd"), SOURCE),
    "class": (type("Other", (Lengths,), {}), texts("a", "bcd"), SOURCE),
    "split": (Lengths, {"validation": texts("a", "bcd")["train"]}, SOURCE),
    "model": (Lengths, texts("a", "bcd"), ModelSource(None, type="gpt2")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_are_made_again_if_this_changes(name: str) -> None:
    recipe = changed(processor=tokenizer("a"))() if name == "processor" else Lengths()
    preprocess_splits(recipe, texts("a", "bcd"), SOURCE)
    make, splits, source = OTHERS[name]
    other: Any = make()
    preprocess_splits(other, splits, source)
    assert len(other.made) == 1


def test_code_beside_the_recipe_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskrecipe.data import code_digest

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "beside.py").write_text("x = 1")
    module = SimpleNamespace(__file__=str(package / "recipe.py"), __package__="package")
    monkeypatch.setitem(sys.modules, "package.recipe", module)  # type: ignore[arg-type]
    before = code_digest.digest_code.__wrapped__("package.recipe")
    (package / "beside.py").write_text("x = 2")
    assert code_digest.digest_code.__wrapped__("package.recipe") != before


def test_a_tokenizer_that_was_called_is_the_same_tokenizer() -> None:
    recipe, again = Lengths(), Lengths()
    recipe.processor = again.processor = tokenizer("a")
    preprocess_splits(recipe, texts("a"), SOURCE)
    again.processor(["a a a"], truncation=True, max_length=2, padding="max_length")
    preprocess_splits(again, texts("a"), SOURCE)
    assert again.made == []


def test_a_processor_that_cannot_be_saved_is_not_cached() -> None:
    recipe = Lengths()
    recipe.processor = object()
    assert preprocess_splits(recipe, texts("ab"), SOURCE)["train"]["length"] == [2]
    assert not Path(os.environ["TASKRECIPE_CACHE"]).exists() or entries() == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "rows gone", "entry gone", "entry broken"])
def test_a_damaged_entry_is_made_again_with_a_warning(damage: str) -> None:
    many = ["a" * (number % 50) for number in range(2000)]
    preprocess_splits(Lengths(), texts(*many), SOURCE)
    rows, entry = entries()[0] / cache_entry.ROWS, entries()[0] / cache_entry.ENTRY
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1  # a number of a row, which nothing but a checksum sees
    {
        "flipped": lambda: rows.write_bytes(content),
        "cut": lambda: rows.write_bytes(content[:-50]),
        "emptied": lambda: rows.write_bytes(b""),
        "rows gone": rows.unlink,
        "entry gone": entry.unlink,
        "entry broken": lambda: entry.write_text("{}"),
    }[damage]()
    recipe = Lengths()
    with pytest.warns(UserWarning, match="are damaged and are made again"):
        made = preprocess_splits(recipe, texts(*many), SOURCE)["train"]
    assert (list(made["length"]), recipe.made) == ([len(text) for text in many], ["train"])
    preprocess_splits(fresh := Lengths(), texts(*many), SOURCE)
    assert fresh.made == []


def test_what_was_told_is_told_again_from_the_cache() -> None:
    for _ in range(2):
        with collect_warnings() as notes:
            preprocess_splits(Lengths(), texts("odd"), SOURCE)
        assert notes == ["one text is odd"]


def test_rows_that_stay_as_they_are_and_streams_are_not_kept() -> None:
    class Plain(Lengths):
        def preprocess(self, rows: Dataset, split: str) -> Dataset:
            return rows

    splits = {**texts("a"), "stream": IterableDataset.from_generator(lambda: iter([{"text": "a"}]))}
    assert preprocess_splits(Plain(), splits, SOURCE) == splits
    assert entries() == []


def test_images_stay_where_they_are_and_a_moved_folder_is_noticed(tmp_path: Path) -> None:
    from datasets import Features, Value
    from datasets import Image as ImageFeature

    class Images(Lengths):
        def preprocess(self, rows: Dataset, split: str) -> Dataset:
            self.made.append(split)
            return rows.add_column("number", list(range(len(rows))))

    def rows(folder: str) -> dict[str, Any]:
        path = tmp_path / folder / "a.png"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((200, 200), 50).save(path) if not path.exists() else None
        return {"train": Dataset.from_dict({"image": [str(path)]}, features=Features({"image": ImageFeature()}))}

    made = preprocess_splits(Images(), rows("one"), SOURCE)["train"]
    assert (made[0]["image"].size, made.features["number"]) == ((200, 200), Value("int64"))
    assert (entries()[0] / cache_entry.ROWS).stat().st_size < 5000
    (tmp_path / "one").rename(tmp_path / "two")
    assert preprocess_splits(Images(), rows("two"), SOURCE)["train"][0]["image"].size == (200, 200)


def test_a_full_disk_costs_the_cache_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", no_room)
    with pytest.warns(UserWarning, match="are not cached in .*: No space left on device"):
        assert preprocess_splits(Lengths(), texts("ab"), SOURCE)["train"]["length"] == [2]
    assert list(Path(os.environ["TASKRECIPE_CACHE"]).iterdir()) == []


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_only_what_carries_our_mark_is_removed_after_a_day() -> None:
    root = Path(os.environ["TASKRECIPE_CACHE"])
    root.mkdir(parents=True, exist_ok=True)
    old, recent, growing = (make_temporary_folder(root) for _ in range(3))
    foreign, unmarked = root / ".their-folder", root / f"{PREFIX}unmarked"
    for folder in (foreign, unmarked):
        folder.mkdir()
        (folder / "file").write_text("precious")
    (foreign / MARK).touch()  # the mark alone is not enough
    linked = root / f"{PREFIX}link"
    linked.symlink_to(foreign)
    (growing / cache_entry.ROWS).touch()
    for folder in (old, growing, foreign, unmarked):
        for path in (*folder.iterdir(), folder):
            if path.name != cache_entry.ROWS:
                age(path, 2 * 86400)
    age(recent, 60)
    preprocess_splits(Lengths(), texts("a"), SOURCE)
    assert not old.exists()
    assert [path.exists() for path in (recent, growing, linked)] == [True, True, True]
    assert [(folder / "file").read_text() for folder in (foreign, unmarked)] == ["precious", "precious"]


def test_a_damaged_entry_keeps_files_that_are_not_ours() -> None:
    preprocess_splits(Lengths(), texts("a"), SOURCE)
    (entries()[0] / "notes.txt").write_text("precious")
    (entries()[0] / cache_entry.ENTRY).write_text("{}")
    with pytest.warns(UserWarning, match="are damaged and are made again"):
        assert preprocess_splits(Lengths(), texts("a"), SOURCE)["train"]["length"] == [1]
    assert (entries()[0] / "notes.txt").read_text() == "precious"


RACE = """
import sys, time
from datasets import Dataset
from taskrecipe.data.cache_entry import write_entry, read_entry
from pathlib import Path
rows = Dataset.from_dict({"n": list(range(1000))})
entry = Path(sys.argv[1]) / "entry"
while time.time() < float(sys.argv[2]):
    pass
for number in range(20):
    write_entry(entry, rows.features.arrow_schema, [rows.data.table], [])
    assert read_entry(entry)[0]["n"] == list(range(1000))
"""


def test_two_processes_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    import time

    start = str(time.time() + 3)
    command = [sys.executable, "-W", "error", "-c", RACE, str(tmp_path), start]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[1] for process in running] == ["", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def double(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"double": [2 * number for number in batch["n"]]}


def test_mapping_drops_old_columns_and_keeps_those_named(capfd: pytest.CaptureFixture[str]) -> None:
    rows = Dataset.from_dict({"n": [1, 2], "m": [3, 4], "label": [0, 1]})
    assert map_rows(rows, double, keep=["label"])[:] == {"label": [0, 1], "double": [2, 4]}
    assert capfd.readouterr() == ("", "")


def test_many_rows_are_mapped_in_processes_and_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ROWS_PER_PROCESS", 10)
    monkeypatch.setattr(cache, "_count_cores", lambda: 2)
    environment, variables = os.environ, dict(os.environ)
    made = map_rows(Dataset.from_dict({"n": list(range(40)), "pid": [0] * 40}), double_with_process)
    assert os.environ is environment
    assert dict(os.environ) == variables
    assert made["double"] == list(range(0, 80, 2))
    assert len(set(made["process"])) == 2
    assert os.getpid() not in made["process"]
    root = Path(os.environ["TASKRECIPE_CACHE"])
    assert len(list(root.glob(f"{PREFIX}*"))) == 1
    del made
    assert list(root.glob(f"{PREFIX}*")) == []


def double_with_process(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**double(batch), "process": [os.getpid()] * len(batch["n"])}
