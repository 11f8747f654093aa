"""Entry points are found like by `importlib.metadata`, without importing it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from taskrecipe.plugins.entry_points import read_entry_points

TEXT = (
    "[other]\nx = y:z\n\n[taskrecipe.recipes]\n# a comment\none = a.b:C\ntwo=d:E [extra]\n[console_scripts]\nq = r:s\n"
)
METADATA = "Metadata-Version: 2.1\nName: some-thing\nVersion: 2.0\n\nName: not this one\n"


def found(name: str = "some-thing") -> list[tuple[str, ...]]:
    return [tuple(entry) for entry in read_entry_points("taskrecipe.") if entry.distribution == name]


EXPECTED = [
    ("some-thing", "2.0", "taskrecipe.recipes", "one", "a.b:C"),
    ("some-thing", "2.0", "taskrecipe.recipes", "two", "d:E"),
]


@pytest.mark.parametrize(("folder", "metadata"), [("t-2.0.dist-info", "METADATA"), ("t.egg-info", "PKG-INFO")])
def test_a_folder_on_the_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, metadata: str):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "entry_points.txt").write_text(TEXT)
    (tmp_path / folder / metadata).write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)
    assert found() == EXPECTED


def test_a_zip_file_on_the_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("t-2.0.dist-info/entry_points.txt", TEXT)
        file.writestr("t-2.0.dist-info/METADATA", METADATA)
    monkeypatch.syspath_prepend(tmp_path / "all.zip")
    assert found() == EXPECTED


def test_a_finder_with_distributions_of_its_own_is_asked(monkeypatch: pytest.MonkeyPatch):
    from importlib.metadata import Distribution

    class Known(Distribution):
        def read_text(self, filename: str) -> str | None:
            return {"entry_points.txt": TEXT, "METADATA": METADATA}.get(filename)

        def locate_file(self, path: object) -> Path:
            raise NotImplementedError

    class Finder:
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: object = None) -> list[Distribution]:
            return [Known()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert found() == EXPECTED


def test_what_is_installed_here_is_found_as_by_importlib():
    theirs = {
        (distribution.name, distribution.version, entry.group, entry.name, entry.value)
        for distribution in distributions()
        for entry in distribution.entry_points
        if entry.group.startswith("taskrecipe.")
    }
    assert {tuple(entry) for entry in read_entry_points("taskrecipe.")} == theirs


def test_validating_a_spec_imports_neither_metadata_nor_a_parser_of_commands():
    root = Path(__file__).parents[2]
    script = (
        "import sys; sys.argv = ['recipe', 'validate', 'specs/mrpc.toml']\nfrom taskrecipe.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert ended.code == 0\n"
        "names = ('importlib.metadata', 'email', 'typer', 'tomlkit', 'tree_sitter', 'difflib', 'json', 'signal')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
