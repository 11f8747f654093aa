"""The door: every public name, imported when it is used, in a host that stays as it was."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import taskrecipe

DOORS = ["taskrecipe", "taskrecipe.data", "taskrecipe.text", "taskrecipe.vision"]

STATE = """
import gc, json, logging, os, random, signal, sys, threading, warnings
import numpy, torch

def state():
    loggers = {name: logger.level for name, logger in logging.root.manager.loggerDict.items()
               if isinstance(logger, logging.Logger) and logger.level}
    return {
        "environment": dict(os.environ),
        "signals": {str(s): str(signal.getsignal(s)) for s in signal.valid_signals() if s not in (9, 19)},
        "gc": [gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()],
        "logging": [logging.root.level, logging.root.manager.disable, len(logging.root.handlers)],
        "warnings": len(warnings.filters),
        "random": [random.getstate()[1][:3], numpy.random.get_state()[1][:3].tolist()],
        "torch": torch.get_rng_state()[:9].tolist(),
        "threads": torch.get_num_threads(),
        "hooks": [str(sys.excepthook), str(sys.unraisablehook), str(threading.excepthook)],
    }
"""


@pytest.mark.parametrize("name", DOORS)
def test_a_door_has_exactly_the_names_that_it_lists(name: str) -> None:
    door, names = import_module(name), {}
    exec(f"from {name} import *", names)
    assert set(names) - {"__builtins__"} == set(door.__all__) == set(dir(door))
    for public in door.__all__:
        assert names[public] is getattr(door, public) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        door.nothing  # noqa: B018


@pytest.mark.parametrize("name", DOORS)
def test_a_type_checker_sees_every_name_of_a_door(name: str) -> None:
    """It takes a name that a stub imports for a private one, unless it is imported `as` itself."""
    lines = Path(import_module(name).__file__).with_suffix(".pyi").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"from \S+ import (\w+) as \1", line)] == []


def test_the_names_of_the_door_are_these() -> None:
    assert {"Recipe", "Column", "TaskOptions", "train", "resume", "validate", "__version__"} <= set(taskrecipe.__all__)
    kinds = {"Optimizer", "Schedule", "Callback", "Listener", "Tracker", "Technique", "Effect"}
    errors = {"RecipeError", "UsageError", "SpecError", "DataError", "RunStopped", "PluginError", "Interrupted"}
    assert kinds | errors <= set(taskrecipe.__all__)


def test_recipes_import_from_doors_and_from_nothing_else() -> None:
    root = Path(__file__).parents[1]
    allowed = ("taskrecipe", "taskrecipe.data", "taskrecipe.text", "taskrecipe.vision", "taskrecipe.metrics")
    inside = [
        (path.name, line.strip())
        for folder in ("recipes", "contrib")
        for path in (root / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith(("from taskrecipe", "import taskrecipe"))
        and line.split()[1] not in allowed
        and not line.split()[1].startswith("taskrecipe.contrib")
    ]
    assert inside == []


def test_importing_the_package_loads_little_and_changes_nothing() -> None:
    script = """
import atexit, gc, json, logging, os, signal, sys
before = (dict(os.environ), gc.isenabled(), gc.get_freeze_count(), logging.root.level, atexit._ncallbacks(),
          {s: signal.getsignal(s) for s in signal.valid_signals()})
import taskrecipe
taskrecipe.Recipe, taskrecipe.train, taskrecipe.validate
after = (dict(os.environ), gc.isenabled(), gc.get_freeze_count(), logging.root.level, atexit._ncallbacks(),
         {s: signal.getsignal(s) for s in signal.valid_signals()})
heavy = sorted({"torch", "transformers", "datasets", "accelerate", "evaluate"} & set(sys.modules))
print(json.dumps([heavy, [a == b for a, b in zip(before, after)]]))
"""
    heavy, same = json.loads(python(script))
    assert heavy == []
    assert same == [True, True, True, True, True, True]


SPEC = repr(str(Path(__file__).parents[1] / "specs" / "mrpc.toml"))
SAMPLE = f"{SPEC}, set={{'train.updates': 2}}, sample=True"
CALLS = {
    "train": f"run = taskrecipe.train({SAMPLE}, quiet=True)",
    "resume": "taskrecipe.resume(run.folder, set={'train.updates': 3}, allow=['train.updates'], quiet=True)",
    "dry_run": f"taskrecipe.dry_run({SAMPLE})",
    "refused": f"""
try:
    taskrecipe.train({SPEC}, set={{'data.offline': 'error'}}, quiet=True)
except taskrecipe.DataError:
    pass
""",
    "processes": f"taskrecipe.train({SAMPLE}, quiet=True, processes=2)",
}


def test_training_leaves_the_host_as_it_was(tmp_path: Path) -> None:
    """In one process, so that torch is imported once: every call finds the host as the first one did."""
    watched = "\n".join(f"{call}\nfound[{how!r}] = differences()" for how, call in CALLS.items())
    script = f"""
{STATE}
import accelerate, datasets, evaluate, transformers, taskrecipe
os.chdir({str(tmp_path)!r})
before, found = state(), {{}}

def differences():
    after = state()
    return {{key: [before[key], after[key]] for key in before if before[key] != after[key]}}

{watched}
print(json.dumps(found))
"""
    assert json.loads(python(script)) == {how: {} for how in CALLS}


def python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]
