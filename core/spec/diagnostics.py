"""Problems of a spec, each with its place in a file, and the formats they are shown in.

Whatever comes from a file is shown safely: control and direction characters escaped, secrets hidden, long text cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from taskrecipe.core.spec.secrets import redact

Format = Literal["text", "json", "github", "sarif"]

CODES = {
    "ambiguous-callback": "A name that several distributions registered.",
    "ambiguous-optimizer": "A name that several distributions registered.",
    "ambiguous-recipe": "A name that several distributions registered.",
    "ambiguous-schedule": "A name that several distributions registered.",
    "ambiguous-tracker": "A name that several distributions registered.",
    "bad-character": "A control or direction character that hides what a text says.",
    "bad-extends": "A parent that can't be extended.",
    "bad-set": "A --set that is not KEY=VALUE with a TOML value.",
    "conflict": "Keys that exclude one another.",
    "duplicate-key": "A key or table that is given twice.",
    "empty-file": "A file without a single key.",
    "invalid-value": "A value that the recipe or plugin refuses.",
    "missing-key": "A key that must be given.",
    "no-effect": "A key that nothing would read.",
    "out-of-range": "A number or text beyond its bounds.",
    "plugin-failed": "Code of a plugin failed.",
    "precision": "A precision that the device does not have.",
    "secret": "A secret in a spec.",
    "spec-version": "A file of another version of the format.",
    "syntax": "Not TOML.",
    "too-large": "A file or a nesting beyond what specs need.",
    "uneven-batch": "A batch that can't be split evenly.",
    "unknown-callback": "A callback that is not installed.",
    "unknown-key": "A key that the table does not have.",
    "unknown-metric": "A metric that the recipe does not report.",
    "unknown-optimizer": "An optimizer that is not installed.",
    "unknown-recipe": "A recipe that is not installed.",
    "unknown-schedule": "A schedule that is not installed.",
    "unknown-split": "A split that neither recipe nor data has.",
    "unknown-tracker": "A tracker that is not installed.",
    "unknown-value": "A value that is not one of those allowed.",
    "unreadable": "A file that can't be read.",
    "warmup": "A warmup longer than the training.",
    "wrong-table": "A key that belongs in another table.",
    "wrong-type": "A value of the wrong type.",
}
"""Every code a problem can have, and what it means; codes never change their meaning."""

MOST_PROBLEMS = 100
"""Of one spec; who has more of them has one that explains the rest."""

SHOWN_LINE = 100
SHOWN_TEXT = 60
SHOWN_MESSAGE = 600

_RED, _BOLD, _DIM, _RESET = "\033[31m", "\033[1m", "\033[2m", "\033[0m"


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place of a spec, and what to write there instead where that is known."""

    file: str
    line: int
    column: int
    code: str
    message: str
    suggestion: str | None = None
    source: str = ""
    """The whole line it is in."""
    width: int = 1
    """How many characters of that line it is about."""

    def __str__(self) -> str:
        return as_text(self)


def visible(text: str, limit: int = SHOWN_MESSAGE) -> str:
    """`text` made safe to show: secrets hidden, cut to `limit`, and what would not print written as an escape."""
    text = redact(text[: 4 * limit])
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isprintable() else "".join(map(_escaped, text))


def shown(value: Any) -> str:
    """A value as a message repeats it: as in TOML, short and safe."""
    if isinstance(value, str):
        return f"'{visible(value, SHOWN_TEXT)}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of very many digits"
    return str(value)


def as_text(problem: Problem, *, colour: bool = False) -> str:
    """The problem as compilers show theirs, with the line and a caret."""
    red, bold, dim, reset = (_RED, _BOLD, _DIM, _RESET) if colour else ("", "", "", "")
    where = f"{visible(problem.file)}:{problem.line}:{problem.column}"
    head = f"{bold}{where}:{reset} {red}error[{problem.code}]{reset}: {visible(problem.message)}"
    hint = f" did you mean {_quoted(problem.suggestion)}?" if problem.suggestion is not None else ""
    if not problem.source.strip():
        return head + hint
    line, offset, width = _excerpt(problem)
    gutter = f"{problem.line:>5} | "
    margin = " " * (len(gutter) - 2) + "| "
    return f"{head}\n{dim}{gutter}{reset}{line}\n{dim}{margin}{reset}{' ' * offset}{red}{'^' * width}{hint}{reset}"


def render(problems: Sequence[Problem], style: Format, *, colour: bool = False) -> str:
    """All problems in one format; colour is for text on a terminal."""
    if style == "json":
        return _dump([_record(problem) for problem in problems])
    if style == "sarif":
        return _dump(_sarif(problems))
    if style == "github":
        return "\n".join(map(_annotation, problems))
    return "\n".join(as_text(problem, colour=colour) for problem in problems)


def _record(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "code": problem.code,
        "message": visible(problem.message),
        "suggestion": problem.suggestion,
    }


def _annotation(problem: Problem) -> str:
    """A workflow command of GitHub Actions; it marks the line in the pull request."""
    properties = {
        "file": visible(problem.file),
        "line": problem.line,
        "col": problem.column,
        "endColumn": problem.column + problem.width,
        "title": problem.code,
    }
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::error {listed}::{_data(_full_message(problem))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _sarif(problems: Sequence[Problem]) -> dict[str, Any]:
    codes = sorted({problem.code for problem in problems})
    rules = [{"id": code, "shortDescription": {"text": CODES[code]}} for code in codes]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "recipe", "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(problem, codes.index(problem.code)) for problem in problems],
            }
        ],
    }


def _result(problem: Problem, rule: int) -> dict[str, Any]:
    region = {
        "startLine": problem.line,
        "startColumn": problem.column,
        "endColumn": problem.column + problem.width,
    }
    place = {"artifactLocation": {"uri": _uri(problem.file)}, "region": region}
    return {
        "ruleId": problem.code,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": _full_message(problem)},
        "locations": [{"physicalLocation": place}],
    }


def _uri(file: str) -> str:
    from urllib.parse import quote

    path = quote(os.fsencode(PurePath(file).as_posix()))  # a name need not be UTF-8
    return f"file://{path}" if path.startswith("/") else path


def _full_message(problem: Problem) -> str:
    hint = "" if problem.suggestion is None else f"; did you mean {_quoted(problem.suggestion)}?"
    return visible(problem.message) + hint


def _quoted(suggestion: str) -> str:
    is_word = not (suggestion[:1].isdigit() or suggestion[:1] in "+-" or suggestion in ("true", "false"))
    return f"'{visible(suggestion)}'" if is_word else visible(suggestion)


def _excerpt(problem: Problem) -> tuple[str, int, int]:
    """The part of the line around the problem, where the caret starts and how wide it is, as a terminal shows them."""
    start, end = problem.column - 1, problem.column - 1 + problem.width
    cut = max(0, min(start - SHOWN_LINE // 4, len(problem.source) - SHOWN_LINE))
    line, more = _redacted_part(problem.source, cut, cut + SHOWN_LINE), cut + SHOWN_LINE < len(problem.source)
    parts = line[: start - cut], line[start - cut : end - cut], line[end - cut :]
    before, marked, after = ("".join(map(_escaped, part)) for part in parts)
    before, after = "…" * bool(cut) + before, after + "…" * more
    return before + marked + after, _cells(before), max(1, _cells(marked))


def _redacted_part(line: str, start: int, end: int) -> str:
    """A part of the line, secrets hidden; enough around it is looked at to recognise those it holds half of."""
    margin = min(start, 1000)
    return redact(line[start - margin : end + 1000])[margin : margin + end - start]


def _escaped(character: str) -> str:
    if character == "\t":
        return "    "
    return character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()


def _cells(text: Iterable[str]) -> int:
    """How many columns of a terminal `text` takes."""
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _dump(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=True)
