"""`recipe guide`: print a page of the guide, or the section about a code of an error.

Pages are Markdown files that are installed with the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import typer

from taskrecipe.cli.help.layout import print_entries
from taskrecipe.cli.troubleshooting import code_meanings, explain_code, troubleshooting_page
from taskrecipe.errors import UsageError
from taskrecipe.system.secrets import to_json
from taskrecipe.system.suggestions import did_you_mean


def guide(name: str | None, *, as_json: bool = False) -> None:
    """Print the page called `name`, or the list of pages if no name is given."""
    pages = read_pages()
    if as_json:
        typer.echo(to_json(_describe_pages(pages, name), indent=2))
    elif name is None:
        print_entries([(page, [_read_title(text)]) for page, text in pages.items()])
    elif name in pages:
        typer.echo(pages[name], nl=False)
    elif section := explain_code(name):
        typer.echo(section, nl=False)
    else:
        raise _unknown_page(name, pages)


def _describe_pages(pages: Mapping[str, str], name: str | None) -> dict[str, Any]:
    """Return one page, or what pages and codes there are."""
    if name is None:
        titles = {page: _read_title(text) for page, text in pages.items()}
        return {"pages": titles, "codes": code_meanings()}
    text = pages.get(name) or explain_code(name)
    if text is None:
        raise _unknown_page(name, pages)
    return {"page": name, "title": _read_title(text), "text": text}


def _unknown_page(name: str, pages: Mapping[str, str]) -> UsageError:
    hint = did_you_mean(name, [*pages, *code_meanings()])
    return UsageError(f"there is no page {name!r}{hint}; `recipe guide` lists the pages: {', '.join(pages)}")


def read_pages() -> dict[str, str]:
    """Return the text of every page by its name."""
    found = [file for file in (files("taskrecipe.cli") / "pages").iterdir() if file.name.endswith(".md")]
    names = {file.name.removesuffix(".md").replace("_", "-"): file for file in found}
    texts = {name: names[name].read_text(encoding="utf-8") for name in sorted(names)}
    return {**texts, "troubleshooting": troubleshooting_page()}


def _read_title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ")
