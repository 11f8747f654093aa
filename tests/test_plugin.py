"""A stranger's package, built and installed beside ours into an environment of its own, works like one of ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SPEC = """\
spec_version = 1
recipe = "bits"
[task]
hidden = 12
[data]
sample = true
[train]
epochs = 2
batch_size = 16
learning_rate = 0.01
[optimizer]
name = "sign"
[[techniques]]
name = "flip_bits"
[[callbacks]]
name = "count_updates"
limit = 20
[log]
every = 1
"""


LOAD_AGAIN = """
import torch
from safetensors.torch import load_file
from taskrecipe import Run

run = Run("run")
model, recipe = run.model(), run.recipe
saved = load_file(f"run/checkpoints/step-{run.results['best']['step']}/model.safetensors")
with torch.no_grad():
    outputs = recipe.forward(model, {"bits": torch.tensor([[1] * 9, [0] * 9])})
ones, zeros = (recipe.answer({"label": label}, {}) for label in recipe.predict(outputs, {})["label"])
same = saved.keys() == model.state_dict().keys()
print(recipe.labels, ones, zeros, same and all(torch.equal(v, saved[k]) for k, v in model.state_dict().items()))
"""


def run(*command: str | Path, cwd: Path, code: int = 0, **env: str) -> str:
    environment = {**os.environ, "COLUMNS": "110", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **env}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def build(source: Path, target: Path) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", target, source, cwd=target)
    [wheel] = target.glob("*.whl")
    return wheel


def copied(source: Path, target: Path, *names: str) -> Path:
    """A copy to build from, so that nothing of a build is left in the tree."""
    for name in names:
        part = source / name
        if part.is_dir():
            shutil.copytree(part, target / name, ignore=shutil.ignore_patterns("__pycache__", ".build"))
        else:
            shutil.copy(part, target / name)
    return target


class Environment:
    """A virtual environment with the packages of this one, and of our own only what is installed into it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        [self.site] = (folder / "lib").glob("python*/site-packages")
        (self.site / "packages.pth").write_text(sysconfig.get_path("purelib"))

    def install(self, wheel: Path) -> None:
        python = self.folder / "bin" / "python"
        run(
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--no-deps",
            "--no-index",
            wheel,
            cwd=self.folder,
        )

    def recipe(self, *arguments: str | Path, cwd: Path, code: int = 0, **env: str) -> str:
        return run(self.folder / "bin" / "recipe", *arguments, cwd=cwd, code=code, **env)

    def python(self, *arguments: str | Path, cwd: Path) -> str:
        return run(self.folder / "bin" / "python", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Our wheel and the plugin's, installed."""
    made = Environment(tmp_path_factory.mktemp("environment") / "venv")
    parts = ("core", "recipes", "contrib", "specs", "pyproject.toml", "README.md", "LICENSE")
    ours = copied(ROOT, tmp_path_factory.mktemp("ours"), *parts)
    theirs = copied(ROOT / "tests" / "plugin", tmp_path_factory.mktemp("theirs"), "pyproject.toml", "recipe_bits.py")
    for source in (ours, theirs):
        made.install(build(source, tmp_path_factory.mktemp("wheel")))
    return made


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "bits.toml"
    path.write_text(SPEC)
    return path


def test_it_is_listed_shown_and_in_the_schema(environment: Environment, tmp_path: Path) -> None:
    listed = json.loads(environment.recipe("list", "--json", cwd=tmp_path))
    assert "bits" in {entry["name"] for entry in listed["recipes"]}
    assert "flip_bits" in {entry["name"] for entry in listed["techniques"]}
    shown = environment.recipe("show", "bits", cwd=tmp_path)
    assert "Width of the hidden layer." in shown
    assert "accuracy" in shown
    assert '"hidden"' in environment.recipe("schema", "bits", cwd=tmp_path)
    assert "recipe-bits" in environment.recipe("plugins", cwd=tmp_path)


def test_its_options_are_validated_like_ours(environment: Environment, spec: Path) -> None:
    assert "no problems" in environment.recipe("validate", spec, cwd=spec.parent)
    spec.write_text(SPEC.replace("hidden = 12", "hiden = 12").replace("limit = 20", "limit = 0"))
    problems = environment.recipe("validate", spec, cwd=spec.parent, code=2)
    assert "did you mean 'hidden'" in problems
    assert "limit" in problems


def test_it_runs_and_resumes(environment: Environment, spec: Path) -> None:
    environment.recipe("run", spec, "--out", "run", cwd=spec.parent)
    results = json.loads((spec.parent / "run" / "results.json").read_text())
    assert results["updates"] == 20
    assert "20 updates counted" in (spec.parent / "run" / "log.jsonl").read_text()
    whole = environment.recipe("fingerprint", "run", cwd=spec.parent)
    assert re.search(r"\b[0-9a-f]{64}\b", whole)
    shutil.rmtree(spec.parent / "run" / "checkpoints" / "step-20")
    environment.recipe("resume", "run", cwd=spec.parent)
    assert json.loads((spec.parent / "run" / "results.json").read_text())["updates"] == 20
    assert environment.recipe("fingerprint", "run", cwd=spec.parent) == whole


def test_its_model_is_loaded_again(environment: Environment, spec: Path) -> None:
    """The best weights and the labels, without transformers in the recipe and without `[model]` in the spec."""
    environment.recipe("run", spec, "--out", "run", cwd=spec.parent)
    loaded = environment.python("-c", LOAD_AGAIN, cwd=spec.parent)
    assert loaded.splitlines()[-1] == "['few', 'many'] {'label': 'many'} {'label': 'few'} True"


def test_it_can_be_switched_off(environment: Environment, spec: Path) -> None:
    message = environment.recipe("validate", spec, cwd=spec.parent, code=2, TASKRECIPE_DISABLE_PLUGINS="1")
    assert "bits" in message


BROKEN = {
    "raises at import": ("raise RuntimeError('no luck')", "no luck"),
    "is no recipe": ("Bits = dict", "not a subclass"),
    "names what isn't there": ("Other = 1", "Bits"),
}


def plant(
    environment: Environment, name: str, version: str, code: str, entry: str = "broken", needs: str = "taskrecipe"
) -> list[Path]:
    """Install a distribution by hand: a module and its metadata."""
    module = environment.site / f"{name}.py"
    module.write_text(code)
    info = environment.site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {needs}\n")
    (info / "entry_points.txt").write_text(f"[taskrecipe.recipes]\n{entry} = {name}:Bits\n")
    return [module, info]


@pytest.fixture
def planted(environment: Environment):
    found: list[Path] = []
    yield lambda *arguments, **options: found.extend(plant(environment, *arguments, **options))
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_breaks_only_what_names_it(kind: str, environment: Environment, spec: Path, planted) -> None:
    code, cause = BROKEN[kind]
    planted("brokenbits", "9.1", code)
    assert "bits" in environment.recipe("list", cwd=spec.parent)
    assert "no problems" in environment.recipe("validate", spec, cwd=spec.parent)
    spec.write_text(SPEC.replace('recipe = "bits"', 'recipe = "broken"'))
    message = environment.recipe("validate", spec, cwd=spec.parent, code=5)
    assert all(word in message for word in ("broken", "brokenbits", "9.1", cause))


def test_a_plugin_for_another_version_is_refused(environment: Environment, spec: Path, planted) -> None:
    planted("laterbits", "3.0", "from recipe_bits import Bits", entry="later", needs="TaskRecipe>=7,<8")
    assert "no problems" in environment.recipe("validate", spec, cwd=spec.parent)
    spec.write_text(SPEC.replace('recipe = "bits"', 'recipe = "later"'))
    message = environment.recipe("validate", spec, cwd=spec.parent, code=5)
    assert all(
        word in message for word in ("later", "laterbits", "3.0", "TaskRecipe<8,>=7", "taskrecipe 0.1.0 is installed")
    )


def test_two_owners_of_a_name_are_told_apart(environment: Environment, spec: Path, planted) -> None:
    planted("otherbits", "1.0", "from recipe_bits import Bits", entry="bits")
    message = environment.recipe("validate", spec, cwd=spec.parent, code=2)
    assert "recipe-bits:bits" in message
    assert "otherbits:bits" in message
    spec.write_text(SPEC.replace('recipe = "bits"', 'recipe = "recipe-bits:bits"'))
    assert "no problems" in environment.recipe("validate", spec, cwd=spec.parent)


def test_a_plugin_does_not_shadow_a_built_in(environment: Environment, spec: Path, planted) -> None:
    planted("shadow", "1.0", "from recipe_bits import Bits", entry="glue")
    message = environment.recipe("validate", ROOT / "specs" / "mrpc.toml", cwd=spec.parent, code=2)
    assert "shadow" in message
    assert "taskrecipe:glue" in message


def test_a_slow_plugin_slows_only_those_who_ask_for_it(environment: Environment, spec: Path, planted) -> None:
    planted("slow", "1.0", "import time\ntime.sleep(3)\nfrom recipe_bits import Bits", entry="slow")
    assert "no problems" in environment.recipe("validate", spec, cwd=spec.parent)
    listed = json.loads(environment.recipe("plugins", "--json", cwd=spec.parent))
    [entry] = [entry for entry in listed if entry["name"] == "slow"]
    assert entry["load_ms"] > 2500


def test_the_stranger_passes_the_conformance_kit(environment: Environment, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "plugin" / "tests" / "test_bits.py", tmp_path)
    python = environment.folder / "bin" / "python"
    assert "30 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_bits.py", cwd=tmp_path)


def test_a_new_plugin_passes_as_it_is_written(environment: Environment, tmp_path: Path) -> None:
    environment.recipe("new-plugin", "headlines", "package", cwd=tmp_path)
    package = tmp_path / "package"
    environment.install(build(package, tmp_path))
    assert "headlines" in environment.recipe("list", cwd=tmp_path)
    assert "no problems" in environment.recipe("validate", package / "headlines.toml", cwd=tmp_path)
    python = environment.folder / "bin" / "python"
    assert "21 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=package)
    again = environment.recipe("new-plugin", "headlines", "package", cwd=tmp_path, code=2)
    assert "headlines" in again
