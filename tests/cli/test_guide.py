"""`recipe guide`: the pages that are installed with the package."""

from __future__ import annotations

from pathlib import Path

from taskrecipe.cli.help.completion import complete_pages

PAGES = Path(__file__).parents[2] / "core" / "cli" / "pages"


def test_without_a_name_every_page_is_listed_with_its_title(recipe):
    listed = recipe("guide")
    assert listed.code == 0
    for page in PAGES.glob("*.md"):
        assert page.stem.replace("_", "-") in listed.out
        assert page.read_text().splitlines()[0].removeprefix("# ") in listed.out


def test_a_page_is_printed_as_it_is(recipe):
    assert recipe("guide", "own-recipe").out == (PAGES / "own_recipe.md").read_text()


def test_an_unknown_page_is_refused_with_a_suggestion(recipe):
    refused = recipe("guide", "own-recipes")
    assert (refused.code, refused.out) == (2, "")
    assert "there is no page 'own-recipes'; did you mean 'own-recipe'?" in refused.err


def test_names_of_pages_are_completed():
    assert complete_pages("own") == ["own-recipe"]
    assert complete_pages("x") == []
