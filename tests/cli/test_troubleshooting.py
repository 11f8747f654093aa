"""The page about codes: a section for each code, and an example of it that is real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskrecipe.cli.troubleshooting import code_meanings, explain_code, troubleshooting_page
from taskrecipe.cli.validate import problems_of
from taskrecipe.plugins.registry import installed

SPECS = Path(__file__).parents[2] / "specs"
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {code: TOML.findall(explain_code(code) or "") for code in code_meanings()}
WITHOUT_EXAMPLE = {code for code, examples in EXAMPLES.items() if not examples}


@pytest.mark.parametrize("code", sorted(code_meanings()))
def test_every_code_has_a_section_that_says_what_to_do(recipe, code: str) -> None:
    told = recipe("guide", code)
    assert told.code == 0
    title, _, meaning, _, *rest = told.out.splitlines()
    assert (title, meaning) == (f"# {code}", code_meanings()[code])
    assert len(" ".join(rest)) > 60


def test_the_page_has_the_codes_there_are_and_no_others() -> None:
    headings = re.findall(r"^## (.+) \{#", troubleshooting_page(), re.MULTILINE)
    named = [code for heading in headings for code in heading.split(", ")]
    assert sorted(named) == sorted(code_meanings())


def test_most_codes_of_specs_have_an_example() -> None:
    assert sum(bool(examples) for examples in EXAMPLES.values()) >= 25


@pytest.mark.parametrize("code", sorted(set(EXAMPLES) - WITHOUT_EXAMPLE))
def test_an_example_has_the_problem_that_its_section_is_about(tmp_path: Path, code: str) -> None:
    [example] = EXAMPLES[code]
    whole = example.startswith("spec_version")
    (tmp_path / "base.toml").write_text((SPECS / "mrpc.toml").read_text())
    path = tmp_path / "example.toml"
    path.write_text(example if whole else f'extends = "base.toml"\n{example}')
    found = {problem.code for problem in problems_of(path, installed())}
    alike = {"unknown-recipe", "unknown-technique", "unknown-schedule", "unknown-callback", "unknown-tracker"}
    assert found == {"unknown-optimizer" if code in alike else code}
