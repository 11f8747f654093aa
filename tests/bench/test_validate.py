"""What checking specs costs: against importing the libraries it is made with, and spec by spec."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from sidebyside import compare

pytestmark = pytest.mark.bench

MRPC = Path(__file__).parents[2] / "specs" / "mrpc.toml"


def timed(*arguments: str | Path) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *map(str, arguments)], check=True, capture_output=True)
    return time.perf_counter() - start


ONE_MODEL = """
import typer
from pydantic import BaseModel
class Model(BaseModel):
    key: int
"""


def test_a_cold_validate_against_the_imports_it_can_t_do_without():
    validate = ("-m", "taskrecipe.core", "validate", MRPC)
    contenders = {
        "import pydantic, typer": lambda: timed("-c", "import pydantic, typer"),
        "… and one pydantic model": lambda: timed("-c", ONE_MODEL),
        "recipe validate mrpc.toml": lambda: timed(*validate),
        "recipe validate mrpc.toml --format json": lambda: timed(*validate, "--format", "json"),
    }
    compare(contenders, rounds=15, title="recipe validate, from a cold start")


def test_a_thousand_specs_in_one_call(tmp_path):
    for number in range(1000):
        (tmp_path / f"{number}.toml").write_bytes(MRPC.read_bytes())
    one, all_of_them = (
        min(timed("-m", "taskrecipe.core", "validate", path) for _ in range(3)) for path in (MRPC, tmp_path)
    )
    each = (all_of_them - one) / 999 * 1000
    print(f"\n1,000 specs in one call: {each:.2f} ms each beyond start-up, {each / 3:.2f} of the 3 ms allowed")
