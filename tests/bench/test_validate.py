"""What checking specs costs, beside the libraries it is built on."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.sidebyside import compare

pytestmark = pytest.mark.bench

SPEC = Path(__file__).parents[2] / "specs" / "mrpc.toml"
RECIPE = Path(sys.executable).with_name("recipe")
ROUNDS = 15
SPECS = 1000

# As pip leaves a package: with its bytecode.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
LIBRARIES = [sys.executable, "-c", "import pydantic, typer"]
ONE_MODEL = [sys.executable, "-c", "import pydantic, typer\nclass One(pydantic.BaseModel):\n    key: int"]


def seconds(*command: str | Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def test_a_cold_validate_against_importing_its_libraries():
    """`import pydantic` alone loads a part of it only; what any use of it costs is the second line."""
    ratios = compare(
        {
            "import pydantic, typer": lambda: seconds(*LIBRARIES),
            "import them and define one model": lambda: seconds(*ONE_MODEL),
            "recipe validate specs/mrpc.toml": lambda: seconds(RECIPE, "validate", SPEC),
        },
        ROUNDS,
        "a cold validate (goal 1.5)",
    )
    assert ratios["recipe validate specs/mrpc.toml"] < 2 * ratios["import them and define one model"]


def test_each_further_spec_against_starting_up(tmp_path):
    """A thousand valid specs in one call: what each costs beyond start-up, as a share of it."""
    for n in range(SPECS):
        shutil.copy(SPEC, tmp_path / f"{n}.toml")
    one = statistics.median(seconds(RECIPE, "validate", SPEC) for _ in range(5))
    all_of_them = statistics.median(seconds(RECIPE, "validate", tmp_path) for _ in range(3))
    each = (all_of_them - one) / (SPECS - 1)
    print(f"\n{SPECS} valid specs in one call: each costs {each / one:.4f} of a start-up beyond it")
    print(f"  {each * 1000:.2f} ms each on this machine, {each / 0.003:.2f} of the goal of 3 ms")
    assert each < one / 20
