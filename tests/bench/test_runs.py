"""What the table of a thousand runs costs, beside reading the same files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.evidence import write_run
from tests.support.sidebyside import compare

from taskrecipe import list_runs

pytestmark = pytest.mark.bench

RUNS = 1000
ROUNDS = 9
FILES = ("run.json", "results.json", "log.jsonl")
"""What the table is made of."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand runs with logs of a thousand lines, in ten folders."""
    folder = tmp_path_factory.mktemp("runs")
    first = write_run(folder / "0" / "run-0")
    update = {"event": "update", "step": 5, "epoch": 0, "learning_rate": 1e-4, "loss": 0.5, "grad_norm": 1.0}
    start, end = (first / "log.jsonl").read_text().splitlines()
    (first / "log.jsonl").write_text("\n".join([start, *([json.dumps(update)] * 1000), end]) + "\n")
    for number in range(1, RUNS):
        shutil.copytree(first, folder / str(number % 10) / f"run-{number}")
    return folder


def read_bare(folder: Path, parse: Callable[[bytes], object]) -> None:
    """Read the same files, and of each log its last part."""
    for path, _, names in os.walk(folder):
        for name in FILES if FILES[0] in names else ():
            with open(f"{path}/{name}", "rb") as file:  # noqa: PTH123 - as bare as it gets
                if name == "log.jsonl":
                    file.seek(-min(16384, os.fstat(file.fileno()).st_size), os.SEEK_END)
                    parse(file.read().splitlines()[-1])
                else:
                    parse(file.read())


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_the_table_of_a_thousand_runs_against_reading_its_files(folder: Path) -> None:
    ratios = compare(
        {
            "read the files": lambda: seconds(lambda: read_bare(folder, bytes)),
            "read and parse the files": lambda: seconds(lambda: read_bare(folder, json.loads)),
            "list_runs with state, best and updates": lambda: seconds(
                lambda: [(run.state, run.best, run.updates) for run in list_runs(folder)]
            ),
        },
        ROUNDS,
        f"{RUNS} runs",
    )
    assert ratios["list_runs with state, best and updates"] < 3


def test_the_command_on_a_thousand_runs_against_starting_python(folder: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    recipe = Path(sys.executable).with_name("recipe")

    def run(*command: str | Path) -> float:
        return seconds(lambda: subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL))

    ratios = compare(
        {
            "import pydantic, typer": lambda: run(sys.executable, "-c", "import pydantic, typer"),
            "recipe runs, of none": lambda: run(recipe, "runs"),
            f"recipe runs, of {RUNS}": lambda: run(recipe, "runs", folder),
        },
        ROUNDS,
        "the command",
    )
    assert ratios[f"recipe runs, of {RUNS}"] < 6
