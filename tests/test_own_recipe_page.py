"""The page about one's own recipe shows the very files that `recipe new-plugin` writes.

`python tests/test_own_recipe_page.py` writes them into it.
"""

from __future__ import annotations

import re
from pathlib import Path

from taskrecipe.core.cli.new_plugin import contents
from taskrecipe.core.recipe import Recipe

PAGE = Path(__file__).parents[1] / "contrib" / "YOUR_OWN_RECIPE.md"
BLOCK = re.compile(r"^```(python|toml)\n# (\S+)\n.*?^```$", re.MULTILINE | re.DOTALL)


def rewritten(text: str) -> str:
    files = contents("headlines")
    return BLOCK.sub(lambda found: f"```{found[1]}\n# {found[2]}\n{files[found[2]].rstrip()}\n```", text)


def test_the_page_shows_the_files_as_they_are_written() -> None:
    text = PAGE.read_text()
    assert len(BLOCK.findall(text)) == 4
    assert rewritten(text) == text


def test_the_page_names_every_method_of_the_contract() -> None:
    own = {name for name, value in vars(Recipe).items() if callable(value) and not name.startswith("_")}
    rarely_needed = {"lengths", "draw", "padding", "reported", "summarize", "parts", "join", "Options"}
    named = set(re.findall(r"^\| `(\w+)`", PAGE.read_text(), re.MULTILINE))
    assert own - rarely_needed <= named <= own


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
