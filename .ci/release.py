"""`make release`: build the sdist and the wheel, try them in an empty environment, and write the release notes.

The environment holds this project alone; packages that it needs are those of the environment that runs this script.
With --with-dependencies they are installed too, from the configured index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def main(arguments: list[str]) -> None:
    """Make a release in dist/, or say what is wrong."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    notes = read_notes((ROOT / "CHANGELOG.md").read_text(), version)
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = build(Path(folder), version)
        require_same_modules(sdist, wheel)
        try_wheel(wheel, Path(folder), version, with_dependencies="--with-dependencies" in arguments)
        DIST.mkdir()
        for file in (sdist, wheel):
            shutil.copy(file, DIST)
    (DIST / "NOTES.md").write_text(notes)
    print("\n".join(str(path.relative_to(ROOT)) for path in sorted(DIST.iterdir())))


def read_notes(changelog: str, version: str) -> str:
    """Return the section about a version; of one that is not released yet, what is listed as unreleased."""
    sections = {part.split("]")[0].strip(" ["): part for part in changelog.split("\n## ")[1:]}
    found = sections.get(version) or sections.get("Unreleased")
    if found is None or not found.partition("\n")[2].strip():
        raise SystemExit(f"CHANGELOG.md has nothing about {version}: add a section '## [{version}]'")
    return f"# {version}\n\n{found.partition(chr(10))[2].strip()}\n"


def build(folder: Path, version: str) -> tuple[Path, Path]:
    """Build both from a copy of what git knows, so that nothing else gets in."""
    source = folder / "source"
    source.mkdir()
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "built"), str(source))
    return (
        folder / "built" / f"taskrecipe-{version}.tar.gz",
        folder / "built" / f"taskrecipe-{version}-py3-none-any.whl",
    )


def require_same_modules(sdist: Path, wheel: Path) -> None:
    """Refuse an sdist that lacks a module of the wheel: a package built from it would not work."""
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    folders = {"recipes": "recipes", "contrib": "contrib", "specs": "specs"}
    for name in zipfile.ZipFile(wheel).namelist():
        top, _, inner = name.partition("/")
        if top == "taskrecipe":
            place = inner if inner.partition("/")[0] in folders else f"core/{inner}"
            if place not in packed:
                raise SystemExit(f"the sdist has no {place}, which the wheel has")


def try_wheel(wheel: Path, folder: Path, version: str, *, with_dependencies: bool) -> None:
    """Install the wheel where nothing of this repository is, and use it from a spec to a prediction."""
    environment, place = folder / "environment", folder / "place"
    place.mkdir()
    venv.create(environment, with_pip=with_dependencies, symlinks=True)
    install = ["install", "--quiet", str(wheel)]
    if with_dependencies:
        run(str(environment / "bin" / "python"), "-m", "pip", *install, cwd=place)
    else:
        python = str(environment / "bin" / "python")
        run(sys.executable, "-m", "pip", "--python", python, *install, "--no-deps", "--no-index", cwd=place)
        [site] = (environment / "lib").glob("python*/site-packages")
        (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    recipe = str(environment / "bin" / "recipe")
    if run(recipe, "--version", cwd=place).strip() != f"recipe {version}":
        raise SystemExit(f"the installed command is not version {version}")
    run(recipe, "new", "glue", "mine.toml", cwd=place)
    run(recipe, "validate", "mine.toml", cwd=place)
    run(recipe, "run", "mine.toml", "--sample", "--quiet", "--set", "train.updates=4", cwd=place)
    (place / "rows.csv").write_text("sentence1,sentence2\nIt is late.,The hour is late.\n")
    run(recipe, "predict", "runs/mine-sample", "rows.csv", "-o", "answers.csv", cwd=place)
    run(recipe, "guide", "agents", cwd=place)


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command without a way into the repository; end with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
