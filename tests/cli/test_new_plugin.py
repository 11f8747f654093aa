"""`recipe new-plugin`: a package of every kind that works as written."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from taskrecipe.cli.new_plugin import EXAMPLES, package_files

ROOT = Path(__file__).parents[2]
KINDS = [kind for kind in EXAMPLES if kind != "recipe"]  # a package with a recipe is installed in tests/test_plugin.py


def install(folder: Path) -> None:
    """Add the metadata that an installation of the package in `folder` would have."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "package-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    lines = []
    for group, names in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def python(*arguments: str | Path, packages: list[Path]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, [*packages, ROOT]))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=packages[0].parent, env=env, capture_output=True, text=True, check=False)


def test_packages_of_every_kind_work_as_written(recipe, tmp_path):
    """Together, so that torch is imported once."""
    packages = [tmp_path / f"my_{kind}" for kind in KINDS]
    for kind, folder in zip(KINDS, packages, strict=True):
        assert recipe("new-plugin", folder.name, folder, "--kind", kind).code == 0
        install(folder)
    specs = [folder / f"{folder.name}.toml" for folder in packages]
    checked = python("taskrecipe", "validate", *specs, packages=packages).stdout
    assert f"{len(KINDS)} specs checked, no problems" in checked
    quick = ["-k", "not test_recipe or documented or declared"]  # the other checks of a recipe take long
    folders = [folder / "tests" for folder in packages]
    tested = python("pytest", "-q", "-p", "no:cacheprovider", "-rA", *quick, *folders, packages=packages)
    assert tested.returncode == 0, tested.stdout
    for kind, folder in zip(KINDS, packages, strict=True):
        assert f"test_{folder.name}.py::" in tested.stdout.partition("short test summary")[2]
        shown = "recipe" if kind == "metric" else kind
        about = python("taskrecipe", "show", folder.name, packages=packages).stdout
        assert f"{folder.name}: {shown} of recipe-{folder.name.replace('_', '-')} 0.1.0" in about


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_package_imports_from_the_door_only(kind):
    code = package_files("my_own", kind)["recipe_my_own.py"]
    modules = {line.split()[1] for line in code.splitlines() if line.strip().startswith("from taskrecipe")}
    assert modules <= {"taskrecipe", "taskrecipe.data", "taskrecipe.text", "taskrecipe.vision"}


def test_a_name_that_is_taken_or_impossible_is_refused(recipe, tmp_path):
    taken = recipe("new-plugin", "cosine", tmp_path / "a", "--kind", "schedule")
    assert (taken.code, taken.err) == (
        2,
        "error: a schedule called 'cosine' is already installed; choose another name\n",
    )
    assert recipe("new-plugin", "Cosine!", tmp_path / "a", "--kind", "schedule").code == 2
    assert recipe("new-plugin", "cosine", tmp_path / "a", "--kind", "optimizer").code == 0
    again = recipe("new-plugin", "cosine", tmp_path / "a", "--kind", "optimizer")
    assert again.code == 2
    assert "choose a new folder" in again.err
