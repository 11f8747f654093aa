"""What each code means and what to do about it: one table of codes, and the page with a section for each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib.resources import files

from taskrecipe import errors
from taskrecipe.errors import RecipeError
from taskrecipe.spec.diagnostics import CODES

PAGE = "troubleshooting.md"
UNEXPECTED = "unexpected"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def code_meanings() -> dict[str, str]:
    """Return every code and its meaning: those of problems in a spec, then those of errors."""
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RecipeError)]
    meanings = {one.code: inspect.cleandoc(one.__doc__ or "").partition(". ")[0].strip(".") + "." for one in classes}
    return {**CODES, **{code: text for code, text in meanings.items() if code}, UNEXPECTED: "An unexpected error."}


def explain_code(code: str) -> str | None:
    """Return the section about a code, as Markdown; None if there is no such code."""
    for codes, body in _read_sections():
        if code in codes:
            return f"# {code}\n\n{code_meanings()[code]}\n\n{body}\n"
    return None


def troubleshooting_page() -> str:
    """Return the whole page, with the meaning of every code."""
    meanings = code_meanings()
    intro = _SECTION.split(_read_page(), maxsplit=1)[0].rstrip()
    parts = [intro]
    for codes, body in _read_sections():
        anchors = "".join(f'<a id="{code}"></a>' for code in codes[1:])
        said = " ".join(dict.fromkeys(meanings[code] for code in codes))
        parts.append(f"## {', '.join(codes)} {{#{codes[0]}}}\n\n{anchors}{said}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def _read_sections() -> Iterator[tuple[list[str], str]]:
    pieces = _SECTION.split(_read_page())[1:]
    for heading, body in zip(pieces[::2], pieces[1::2], strict=True):
        yield heading.split(", "), body.strip()


def _read_page() -> str:
    return (files("taskrecipe.cli") / "pages" / PAGE).read_text(encoding="utf-8")
