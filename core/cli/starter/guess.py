"""What a guess consists of, and which files belong to which split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskrecipe.data.image_folders import find_split_folders
from taskrecipe.system.python_warnings import collect_warnings

Setting = tuple[Any, str]
"""A value, and the reason it was chosen; an empty one if it needs none."""

HELD_OUT = 0.1
"""The share of rows that is set aside if there is no file to evaluate on."""

_OTHER_SPLITS = {
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}
_TRAIN = re.compile(r"train(ing)?", re.IGNORECASE)


@dataclass
class Guess:
    """The parts of a spec that depend on the data, each value with the reason for it."""

    task: dict[str, Setting] = field(default_factory=dict)
    data: dict[str, Setting] = field(default_factory=dict)
    files: dict[str, Setting] = field(default_factory=dict)
    maps: dict[str, Setting] = field(default_factory=dict)
    columns: dict[str, Setting] = field(default_factory=dict)
    evaluate: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What was seen, for the comment at the top."""


def find_splits(path: Path) -> dict[str, Path]:
    """Return the files or folders of the splits: this one, and its neighbors or inner folders of such names."""
    if path.is_dir():
        with collect_warnings():
            return {split: Path(str(found)) for split, found in find_split_folders({"train": str(path)}).items()}
    found = {"train": path}
    for split, words in _OTHER_SPLITS.items():
        for other in _neighbors(path, words):
            found.setdefault(split, other)
    return found


def _neighbors(path: Path, words: tuple[str, ...]) -> Iterator[Path]:
    match = _TRAIN.search(path.name)
    for word in words if match else ():
        other = path.with_name(path.name[: match.start()] + word + path.name[match.end() :])  # type: ignore[union-attr]
        if other.exists():
            yield other


def add_splits(guess: Guess, splits: dict[str, Path], evaluated: dict[str, str]) -> None:
    """Name the files of the splits that the recipe reads. Without one to evaluate on, rows are set aside."""
    guess.files["train"] = splits["train"], ""
    wanted = [theirs for ours, theirs in evaluated.items() if ours != "train"]
    for name in wanted:
        if name in splits:
            guess.files[name] = splits[name], "guessed: it lies next to the training data"
    if not guess.files.keys() & set(wanted):
        reason = "guessed: there is no validation data next to it, so a tenth of the rows is set aside"
        guess.data["holdout"] = HELD_OUT, reason
