"""`[sweep]` and `[expect]` are checked like the rest of a spec, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrecipe.cli.validate import problems_of
from taskrecipe.errors import SpecError
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.resolve import resolve

BASE = """\
spec_version = 1
recipe = "glue"
[task]
name = "mrpc"
[model]
name = "some/model"
[data]
path = "some/data"
[train]
epochs = 3
learning_rate = 1e-3
[[techniques]]
name = "lora"
rank = 8
"""
SWEEP = '[sweep]\ntrials = 3\n[sweep.space]\n"train.learning_rate" = { low = 1e-5, high = 1e-3, log = true }\n'


def check(folder: Path, text: str) -> list[tuple[int, str, str | None]]:
    """The problems of a sweep over `BASE`: line, code and suggestion."""
    (folder / "base.toml").write_text(BASE)
    (folder / "sweep.toml").write_text('extends = "base.toml"\n' + text)
    found = problems_of(folder / "sweep.toml", installed())
    return list(dict.fromkeys((p.line, p.code, p.suggestion) for p in found))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SWEEP, None),
        (SWEEP + '"techniques.0.rank" = { low = 4, high = 64, log = true, int = true }\n', None),
        (SWEEP + "train.clip_norm = { low = 0.5, high = 1.0 }\n", None),
        (SWEEP + '"train.clip_norn" = [1.0]\n', (6, "unknown-key", "train.clip_norm")),
        (SWEEP + '"clip_norm" = [1.0]\n', (6, "unknown-key", "train.clip_norm")),
        (SWEEP + '"techniques.1.rank" = [4]\n', (6, "unknown-key", None)),
        (SWEEP + '"techniques.0.rank" = [4, 0]\n', (6, "out-of-range", None)),
        (SWEEP + '"train.clip_norm" = { low = -1.0, high = 1.0 }\n', (6, "out-of-range", None)),
        (SWEEP + '"train.batch_size" = { low = 8, high = 16 }\n', (6, "wrong-type", None)),
        (SWEEP + '"optimizer.name" = ["adamw", "adamv"]\n', (6, "unknown-optimizer", "adamw")),
        (SWEEP + '"optimizer.name" = ["adamw", "schedule_free"]\n', (6, "conflict", None)),
        (SWEEP + '"seed" = [1, 2]\n', (6, "conflict", None)),
        (SWEEP + '"evaluate.best" = ["f1", "accuracy"]\n', (6, "conflict", None)),
        (SWEEP + '"log.every" = [1, 2]\n', (6, "no-effect", None)),
        (SWEEP + '"train.clip_norm" = [1.0, 1.0]\n', (6, "duplicate-key", None)),
        (SWEEP.replace("1e-3, log", "1e-6, log"), (5, "out-of-range", None)),
        (SWEEP.replace("low = 1e-5", "low = 0.0"), (5, "out-of-range", None)),
        (SWEEP.replace("high", "hihg"), (5, "unknown-key", "high")),
        (SWEEP.replace("trials = 3", 'trials = 3\npruner = "halvin"'), (4, "unknown-value", "halving")),
        (SWEEP.replace("trials = 3", ""), (2, "missing-key", None)),
        (SWEEP.replace("trials = 3", 'sampler = "grid"'), (5, "conflict", None)),
        (SWEEP.replace("trials = 3", 'trials = 3\nsampler = "cmaes"'), (4, "conflict", "tpe")),
        (
            SWEEP.replace("trials = 3", 'trials = 3\npruner = "median"') + '[evaluate]\nevery = "end"\n',
            (4, "conflict", None),
        ),
        ("[sweep]\ntrials = 3\n", (2, "missing-key", None)),
        ("[expect]\nf1 = { at_least = 0.8 }\nupdates = 3\n", None),
        ("[expect]\nf2 = { at_least = 0.8 }\n", (3, "unknown-metric", None)),
        ("[expect]\nacuracy = { at_least = 0.8 }\n", (3, "unknown-metric", "accuracy")),
        ("[expect]\nf1 = { at_lest = 0.8 }\n", (3, "unknown-key", "at_least")),
        ("[expect]\nf1 = {}\n", (3, "missing-key", None)),
        ("[expect]\nf1 = { at_least = 0.8, at_most = 0.7 }\n", (3, "conflict", None)),
        ("[expect]\nf1 = 3\n", (3, "wrong-type", None)),
        ("[expect]\nupdates = { at_least = 3 }\n", (3, "wrong-type", None)),
        ('[expect]\nfingerprint = "abc"\n', (3, "invalid-value", None)),
    ],
)
def test_a_mistake_is_named_at_its_place(
    tmp_path: Path, text: str, problem: tuple[int, str, str | None] | None
) -> None:
    assert check(tmp_path, text) == ([problem] if problem else [])


def test_values_that_only_together_break_a_rule_are_refused(tmp_path: Path) -> None:
    space = SWEEP + '"optimizer.name" = ["adamw", "schedule_free"]\n"schedule.name" = ["constant", "linear"]\n'
    [(line, code, _)] = check(tmp_path, space)
    assert (line, code) == (6, "conflict")
    assert check(tmp_path, space.replace(', "linear"', "")) == []


def test_a_set_changes_one_element_of_a_list(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    resolved = resolve(tmp_path / "base.toml", ["techniques.0.rank=4", "train.epochs=1"])
    assert resolved.spec.techniques[0].model_dump()["rank"] == 4
    assert str(resolved.origins.of(("techniques", 0, "rank"))) == "--set"
    assert str(resolved.origins.of(("techniques", 0, "name"))).endswith("base.toml:13")
    with pytest.raises(SpecError, match="techniques"):
        resolve(tmp_path / "base.toml", ["techniques.1.rank=4"])
