"""The README, the site and the guide show real output: every command and snippet of a page is run.

`make readme` writes the output of today's commands into them. Models that pages name are tiny stand-ins here, so pages
leave out numbers that depend on the model: `…` stands for any text.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if __name__ == "__main__":  # `make readme`
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.commands import Zygote
from tests.support.hub_cache import write_hub_cache
from tests.support.pages import BLOCK, PageRunner, fits

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SITE = ROOT / "docs" / "pages"
GUIDE = ROOT / "core" / "cli" / "pages"
OWN_TESTS = {"own_recipe.md", "troubleshooting.md"}
PAGES = [
    README,
    *sorted(SITE.rglob("*.md")),
    *(page for page in sorted(GUIDE.glob("*.md")) if page.name not in OWN_TESTS),
]
SAMPLE_RUN = "runs/mrpc-sample"
USE_A_RUN = {"use.md", "json.md", "compare.md"}
"""Pages that begin with a run that is there."""
LINK = re.compile(r"\]\(([^)#]+)")
WORDS = """order parcel arrive late lost invoice charged twice refund card password login reset account page error my
the i is a was not on when where please can to it again for since monday friday yesterday today has come broken box open
cannot log in after update screen crash app payment bill wrong amount money back"""


def make_runner(folder: Path) -> tuple[Zygote, Path]:
    """Return what starts commands, with the models that pages name in its cache, and a run for pages to use."""
    write_hub_cache(folder / "hub", ("glue", "image_classification", "chat"), WORDS)
    os.environ["TASKRECIPE_CACHE"] = str(folder / "cache")
    (folder / "output").mkdir()
    zygote = Zygote(folder / "output", HF_HOME=str(folder / "hub"))
    (folder / "specs").symlink_to(ROOT / "specs")
    return zygote, folder


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Zygote, Path]]:
    zygote, folder = make_runner(tmp_path_factory.mktemp("pages"))
    yield zygote, folder
    zygote.close()


def run_page(page: Path, place: Path, started: tuple[Zygote, Path]) -> tuple[str, str]:
    """Return a page as it is and as it should be."""
    zygote, shared = started
    (place / "specs").symlink_to(ROOT / "specs")
    text = page.read_text()
    if page.name in USE_A_RUN:
        if not (shared / SAMPLE_RUN).exists():
            done = zygote.run("run", "specs/mrpc.toml", "--sample", "--quiet", cwd=shared)
            assert done.code == 0, done.stderr
        for name in (SAMPLE_RUN, f"{SAMPLE_RUN}-2")[: 2 if page.name == "compare.md" else 1]:
            shutil.copytree(shared / SAMPLE_RUN, place / name)
    return text, PageRunner(place, zygote).rewrite(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_snippet_of_a_page_does_what_the_page_says(page, tmp_path, request):
    if BLOCK.search(page.read_text()) is None:
        return
    shown, real = run_page(page, tmp_path, request.getfixturevalue("started"))
    assert real == shown, "run: make readme"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_links_to_or_names_exist(page):
    text = BLOCK.sub("", page.read_text())
    if page == README:  # links of the site are checked when it is built
        for path in [link for link in LINK.findall(text) if "://" not in link]:
            assert (ROOT / path).exists(), path
    specs = set(re.findall(r"`(specs/[a-z_/]+\.toml)", text))
    assert [path for path in sorted(specs) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_hides_in_a_block_that_is_not_run(page):
    for kind, _, body in BLOCK.findall(page.read_text()):
        if kind not in ("console", "sh"):
            assert not re.search(r"^\$? ?recipe [a-z]", body, re.MULTILINE), body


def test_what_is_left_out_stands_for_anything_and_nothing_else_does():
    assert fits("a …\n…\nz", "a b c\nd\ne\nz\n")
    assert fits("…", "")
    assert fits("", "")
    assert not fits("", "something")
    assert not fits("a …\nz", "a b\nc\nz\n")


def main(names: list[str]) -> None:
    """Write what commands print today into the named pages, or into all."""
    with tempfile.TemporaryDirectory() as folder:
        started = make_runner(Path(folder))
        for page in PAGES:
            if not names or page.name in names:
                place = Path(folder) / "places" / page.name
                place.mkdir(parents=True)
                page.write_text(run_page(page, place, started)[1])
                print(page.relative_to(ROOT))
        started[0].close()


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)
    main(sys.argv[1:])
