"""Whatever is wrong with data, model folder or environment: a sentence, a documented exit code, and nothing changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.fuzz import ENVIRONMENTS, Case, Fuzz

EXAMPLES = 6
SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))
"""How long the long version searches."""
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "1000"))


@pytest.fixture(scope="module")
def fuzz(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Fuzz:
    return Fuzz(tmp_path_factory.mktemp("fuzz"), zygote)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_damage_ends_with_a_sentence(seed: int, fuzz: Fuzz) -> None:
    assert fuzz.violations(seed) == []


@pytest.mark.chaos
def test_damage_that_was_not_tried_before_ends_with_a_sentence(fuzz: Fuzz) -> None:
    """FUZZ_SECONDS says for how long to search, FUZZ_SEED from where on."""
    end, seed, found = time.monotonic() + SECONDS, FIRST_SEED, []
    while time.monotonic() < end:
        found += fuzz.violations(seed)
        seed += 1
    assert seed > FIRST_SEED
    assert found == [], "\n".join(found)


def test_the_same_seed_makes_the_same_example(fuzz: Fuzz, tmp_path: Path) -> None:
    made = [fuzz.make(3, tmp_path / name) for name in ("a", "b")]
    assert made[0][0].damage == made[1][0].damage
    assert made[0][0].constraints == made[1][0].constraints


def test_a_law_that_is_broken_is_noticed(fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is damaged but every exit code is forbidden, each example is a violation."""
    monkeypatch.setattr("tests.support.fuzz.CODES", set())
    assert "exit code" in fuzz.violations(5)[0]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_can_be_made(name: str, tmp_path: Path) -> None:
    import random

    case = Case(tmp_path, random.Random(0))
    ENVIRONMENTS[name](case)
    tmp_path.chmod(0o755)
    assert case.env or case.constraints or name == "read-only working folder"
