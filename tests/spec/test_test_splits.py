"""Test splits in a spec: known, evaluated at the end, and not used to choose the best unless the spec says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrecipe import SpecError, validate

SPEC = """\
spec_version = 1
recipe = "glue"
[task]
name = "mrpc"
[model]
name = "some/model"
[data.files]
train = "train.csv"
validation = "validation.csv"
test = "test.csv"
[train]
epochs = 1
learning_rate = 1e-3
[evaluate]
"""


def write(folder: Path, lines: str, text: str = SPEC) -> Path:
    path = folder / "spec.toml"
    path.write_text(text + lines)
    return path


@pytest.mark.parametrize(
    "lines",
    [
        "",
        'final = ["test"]',
        'splits = ["validation", "test"]\nbest = "f1"',
        'splits = ["validation", "test"]',
        'splits = ["test"]\nchoose_on_test = true',
        'splits = ["validation", "test"]\nbest = "test/f1"\nchoose_on_test = true',
    ],
)
def test_a_test_split_is_known(lines: str, tmp_path: Path) -> None:
    assert validate(write(tmp_path, lines)).evaluate.predictions == 20_000


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('splits = ["test"]', "the best checkpoint would be chosen by 'test/accuracy', on the test split"),
        (
            'splits = ["validation", "test"]\nbest = "test/f1"',
            r'\[evaluate\] final = \["test"\]; or set choose_on_test',
        ),
        ('final = ["validation"]', "'validation', which is evaluated during training already"),
        ('final = ["tset"]', "did you mean 'test'"),
        ('final = ["test"]\nbest = "test/f1"', "reports accuracy, f1, loss"),
    ],
)
def test_what_would_be_too_optimistic_or_wrong_is_refused(lines: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=problem):
        validate(write(tmp_path, lines))


def test_which_splits_the_hub_has_is_known_only_there(tmp_path: Path) -> None:
    text = SPEC[: SPEC.index("[data.files]")] + '[data]\npath = "nyu-mll/glue"\n' + SPEC[SPEC.index("[train]") :]
    assert validate(write(tmp_path, 'final = ["test"]', text)).evaluate.final == ["test"]
