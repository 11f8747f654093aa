"""The site: it builds without a warning, loads nothing from elsewhere, and has a page for every plugin of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from taskrecipe import installed

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pages" / "pictures"
MOST_BYTES = 200_000
# Anything that a browser fetches by itself: sources, style sheets, imports and urls in styles; no links to follow.
ASSET = re.compile(
    r"""(?:src|srcset|poster|data)\s*=\s*["']?\s*(?:https?:)?//"""
    r"""|<link(?![^>]*rel=["']?(?:canonical|next|prev|edit))[^>]*href\s*=\s*["']?\s*(?:https?:)?//"""
    r"""|@import\s+["'(]|url\(\s*["']?(?:https?:)?//""",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(ROOT / "docs" / "mkdocs.yml"),
        "-d",
        str(target),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "TASKRECIPE_DISABLE_PLUGINS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_it_builds_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 50
    found = {page.name: ASSET.search(page.read_text()) for page in pages}
    assert {name: match[0] for name, match in found.items() if match} == {}


def test_every_recipe_and_technique_has_a_page_with_its_keys(site: Path) -> None:
    for group in ("recipes", "techniques"):
        for plugin in [plugin for plugin in installed().plugins if plugin.group == group and plugin.is_own]:
            page = (site / "reference" / group / f"{plugin.name}.html").read_text()
            assert "Keys of" in page
            assert group == "techniques" or f"previews/{plugin.name}.png" in page


def test_the_spec_reference_has_every_key(site: Path) -> None:
    from taskrecipe.cli.help.fields import list_keys
    from taskrecipe.spec.spec import Spec

    page = (site / "reference" / "spec.html").read_text()
    by_plugin = {"task", "techniques", "optimizer", "schedule", "callbacks", "track"}  # have pages of their own
    for key in [key for key in list_keys(Spec) if key.name.partition(".")[0] not in by_plugin]:
        assert f"<code>{key.name.rpartition('.')[2]}</code>" in page, key.name


def test_pictures_are_small_and_one_is_there_for_every_recipe() -> None:
    pictures = list(PICTURES.rglob("*.png"))
    assert max(picture.stat().st_size for picture in pictures) < MOST_BYTES
    recipes = {plugin.name for plugin in installed().plugins if plugin.group == "recipes" and plugin.is_own}
    assert {picture.stem for picture in (PICTURES / "previews").glob("*.png")} == recipes


def test_the_check_finds_what_a_page_would_load() -> None:
    for bad in (
        '<script src="https://x.org/a.js">',
        "<img src=//x.org/a.png>",
        '<link rel="stylesheet" href="https://x.org">',
    ):
        assert ASSET.search(bad)
    assert not ASSET.search('<a href="https://x.org">x</a>')
