"""What can't be sharded is refused before anything is loaded, at the line that asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.runs import GLUE

from taskrecipe import SpecError, validate

SHARD = '[launch]\nshard = "full"\n'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_size = 8", "batch_size = 8\ncompile = true"),
        ("batch_size = 8", 'batch_size = 8\nprecision = "fp16"'),
        ("[evaluate]", '[optimizer]\nname = "adafactor"\n[evaluate]'),
    ],
)
def test_it_is_a_conflict(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(GLUE.replace(old, new))
    assert "shard" not in _refusal(path)
    path.write_text(GLUE.replace(old, new) + SHARD)
    assert "error[conflict]" in _refusal(path)
    assert "[launch].shard" in _refusal(path)


def test_offloading_without_shards_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(GLUE + "[launch]\noffload = true\n")
    assert "[launch].offload has no effect" in _refusal(path)


def test_multitask_is_refused() -> None:
    from taskrecipe.spec.resolve import resolve

    path = Path("specs/contrib/multitask.toml")
    resolve(path)
    with pytest.raises(SpecError, match="multitask can't be sharded"):
        resolve(path, ['launch.shard="full"'])


def _refusal(path: Path) -> str:
    try:
        validate(path)
    except SpecError as error:
        return str(error)
    return ""
