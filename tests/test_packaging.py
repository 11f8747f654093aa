"""What is shipped: every module, page, template and spec, under one name, with the right entry points."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PARTS = ("core", "recipes", "contrib", "specs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that nothing of a build is left in the tree."""
    source = tmp_path_factory.mktemp("source")
    for name in PARTS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(source / "dist"), str(source))
    [built] = (source / "dist").glob("*.whl")
    return built


def test_the_wheel_has_every_module_page_template_and_spec_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("taskrecipe/") for name in names if name.startswith("taskrecipe/")}
    shipped_kinds = (".py", ".pyi", ".toml", ".typed", ".txt", ".md", ".jinja", ".js", ".css", ".html")
    ours = [path for part in PARTS for path in (ROOT / part).rglob("*") if path.suffix in shipped_kinds]
    assert len(ours) > 150
    assert {"cli/pages/own_recipe.md", "cli/template/recipe.py.txt", "specs/mrpc.toml", "py.typed"} <= shipped
    assert shipped == {str(path.relative_to(ROOT)).removeprefix("core/") for path in ours}
    assert {name.split("/")[0] for name in names} == {"taskrecipe", "taskrecipe-0.1.0.dist-info"}
    assert "taskrecipe-0.1.0.dist-info/licenses/LICENSE" in names


def test_the_wheel_has_the_entry_points_of_the_project(wheel):
    entry_points = configparser.ConfigParser(delimiters="=")
    entry_points.read_string(zipfile.ZipFile(wheel).read("taskrecipe-0.1.0.dist-info/entry_points.txt").decode())
    shipped = {section: dict(entry_points[section]) for section in entry_points.sections()}
    assert shipped == {"console_scripts": PROJECT["project"]["scripts"], **PROJECT["project"]["entry-points"]}


def test_the_installed_wheel_works_outside_the_repository(wheel, tmp_path):
    environment, place = tmp_path / "environment", tmp_path / "elsewhere"
    place.mkdir()
    site = install(wheel, environment)

    def recipe(*arguments: str) -> str:
        return run(str(environment / "bin" / "recipe"), *arguments, cwd=place, env=clean_environment())

    where = run(
        str(environment / "bin" / "python"),
        "-c",
        "import taskrecipe; print(taskrecipe.__file__)",
        cwd=place,
        env=clean_environment(),
    )
    assert where.startswith(str(site))
    assert "glue" in recipe("list")
    recipe("new", "glue", "mine.toml")
    files = ROOT / "specs" / "mrpc.toml", place / "mine.toml"
    ours, written = (file.read_text().splitlines() for file in files)
    assert [line for line in written if "offline" not in line] == [line for line in ours if "offline" not in line]
    assert recipe("validate", "mine.toml") == "1 spec checked, no problems\n"
    assert recipe("guide", "own-recipe") == (ROOT / "core" / "cli" / "pages" / "own_recipe.md").read_text()
    recipe("new-plugin", "mine")
    assert (place / "recipe-mine" / "recipe_mine.py").exists()


def clean_environment() -> dict[str, str]:
    """The environment variables without a way into the repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"COLUMNS": "100"}


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel into a new environment that has the packages of this one, but not this project."""
    venv.create(environment, symlinks=True)
    interpreter = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter)]
    # Outside the repository, or pip would find the metadata of the editable installation there.
    run(*pip, "install", "--no-deps", "--no-index", str(wheel), cwd=environment, env=clean_environment())
    [site] = (environment / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))  # .pth files in there are not followed
    return site


def test_every_folder_with_modules_is_listed_as_a_package():
    folders = {path.parent for part in PARTS for path in (ROOT / part).rglob("*.py")}
    names = {str(folder.relative_to(ROOT)).replace("/", ".").removeprefix("core.") for folder in folders}
    packages = {"taskrecipe" if name == "core" else f"taskrecipe.{name}" for name in names}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


def test_every_requirement_is_pinned_to_a_version_it_allows():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["dev"]]
    for requirement in map(Requirement, wanted):
        if requirement.name == "taskrecipe":
            wanted += [inner for extra in requirement.extras for inner in extras[extra]]
    for requirement in map(Requirement, wanted):
        if requirement.name != "taskrecipe":
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
