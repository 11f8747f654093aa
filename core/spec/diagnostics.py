"""Problems of a spec, each with its place in a file, and the formats that print them.

Text from a file is printed safely: control and direction characters are escaped, secrets hidden, long text cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from taskrecipe.system.secrets import mask, redact
from taskrecipe.system.terminal import printable

Format = Literal["text", "json", "github", "sarif"]

CODES = {
    "ambiguous-callback": "A name that several distributions registered.",
    "ambiguous-optimizer": "A name that several distributions registered.",
    "ambiguous-recipe": "A name that several distributions registered.",
    "ambiguous-technique": "A name that several distributions registered.",
    "ambiguous-schedule": "A name that several distributions registered.",
    "ambiguous-tracker": "A name that several distributions registered.",
    "bad-character": "A control or direction character that hides what a text says.",
    "bad-extends": "A parent that can't be used.",
    "bad-set": "A --set that is not KEY=VALUE with a value in TOML.",
    "conflict": "Values that can't be used together.",
    "duplicate-key": "A key or table that is given twice.",
    "empty-file": "A file without a single key.",
    "invalid-value": "A value that the recipe or plugin refuses.",
    "missing-key": "A key that must be given.",
    "no-effect": "A key that has no effect.",
    "out-of-range": "A number or text outside its bounds.",
    "plugin-failed": "Code of a plugin failed.",
    "precision": "A precision that the device does not support.",
    "secret": "A secret in a spec.",
    "spec-version": "A file of another version of the format.",
    "syntax": "Not TOML.",
    "too-large": "A file or value that is too large or nested too deep.",
    "trainer-name": "A name that the Hugging Face Trainer has for a setting.",
    "uneven-batch": "A batch that can't be split evenly.",
    "unknown-callback": "A callback that is not installed.",
    "unknown-column": "A column that the recipe does not read.",
    "unknown-key": "A key that the table does not have.",
    "unknown-metric": "A metric that the recipe does not report.",
    "unknown-optimizer": "An optimizer that is not installed.",
    "unknown-recipe": "A recipe that is not installed.",
    "unknown-schedule": "A schedule that is not installed.",
    "unknown-split": "A split that neither recipe nor data has.",
    "unknown-technique": "A technique that is not installed.",
    "unknown-tracker": "A tracker that is not installed.",
    "unknown-value": "A value that is not one of those allowed.",
    "unreadable": "A file that can't be read.",
    "warmup": "A warmup longer than the training.",
    "wrong-table": "A key that belongs in another table.",
    "wrong-type": "A value of the wrong type.",
}
"""Every code of a problem and its meaning, which never changes."""

MOST_PROBLEMS = 100
"""The most problems that are reported for one spec."""

SHOWN_LINE = 100
SHOWN_TEXT = 60
SHOWN_MESSAGE = 600

_RED, _BOLD, _DIM, _RESET = "\033[31m", "\033[1m", "\033[2m", "\033[0m"


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place in a file, and a suggestion if there is one."""

    file: str
    line: int
    column: int
    code: str
    message: str
    suggestion: str | None = None
    source: str = ""
    """The whole line of the file."""
    width: int = 1
    """How many characters of the line are wrong."""

    def __str__(self) -> str:
        return render_text(self)


def make_printable(text: str, limit: int = SHOWN_MESSAGE) -> str:
    """Return `text` safe to print: secrets hidden, cut to `limit` characters, special characters escaped."""
    text = redact(text[: 4 * limit])
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return _one_line(text)


def show_value(value: Any) -> str:
    """Return a value as messages print it: as in TOML, short and safe."""
    if isinstance(value, str):
        return f"'{make_printable(value, SHOWN_TEXT)}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of very many digits"
    return str(value)


def render_text(problem: Problem, *, color: bool = False) -> str:
    """Render a problem as compilers do, with the line and a caret."""
    red, bold, dim, reset = (_RED, _BOLD, _DIM, _RESET) if color else ("", "", "", "")
    where = f"{make_printable(problem.file)}:{problem.line}:{problem.column}"
    head = f"{bold}{where}:{reset} {red}error[{problem.code}]{reset}: {make_printable(problem.message)}"
    hint = f" did you mean {_quote(problem.suggestion)}?" if problem.suggestion is not None else ""
    if not problem.source.strip():
        return head + hint
    line, offset, width = _excerpt(problem)
    gutter = f"{problem.line:>5} | "
    margin = " " * (len(gutter) - 2) + "| "
    return f"{head}\n{dim}{gutter}{reset}{line}\n{dim}{margin}{reset}{' ' * offset}{red}{'^' * width}{hint}{reset}"


def render_problems(problems: Sequence[Problem], style: Format, *, color: bool = False) -> str:
    """Render all problems in one format. `color` is for text on a terminal."""
    if style == "json":
        return _dump(problem_records(problems))
    if style == "sarif":
        return _dump(_sarif(problems))
    if style == "github":
        return "\n".join(map(_annotate, problems))
    return "\n".join(render_text(problem, color=color) for problem in problems)


def problem_records(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Return the problems as JSON values."""
    return [_record(problem) for problem in problems]


def _record(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "code": problem.code,
        "message": make_printable(problem.message),
        "suggestion": problem.suggestion,
        "help": f"recipe guide {problem.code}",
    }


def _annotate(problem: Problem) -> str:
    """Render a command of GitHub Actions that marks the line in a pull request."""
    properties = {
        "file": make_printable(problem.file),
        "line": problem.line,
        "col": problem.column,
        "endColumn": problem.column + problem.width,
        "title": problem.code,
    }
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::error {listed}::{_data(_full_message(problem))} (recipe guide {problem.code})"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _sarif(problems: Sequence[Problem]) -> dict[str, Any]:
    codes = sorted({problem.code for problem in problems})
    rules = [
        {"id": code, "shortDescription": {"text": CODES[code]}, "help": {"text": f"recipe guide {code}"}}
        for code in codes
    ]
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

    path = quote(os.fsencode(PurePath(file).as_posix()))  # a file name may be any bytes
    return f"file://{path}" if path.startswith("/") else path


def _full_message(problem: Problem) -> str:
    hint = "" if problem.suggestion is None else f"; did you mean {_quote(problem.suggestion)}?"
    return make_printable(problem.message) + hint


def _quote(suggestion: str) -> str:
    is_word = not (suggestion[:1].isdigit() or suggestion[:1] in "+-" or suggestion in ("true", "false"))
    return f"'{make_printable(suggestion)}'" if is_word else make_printable(suggestion)


def _excerpt(problem: Problem) -> tuple[str, int, int]:
    """Return the part of the line around the problem, and the start and width of its carets on a terminal."""
    start, end = problem.column - 1, problem.column - 1 + problem.width
    cut = max(0, min(start - SHOWN_LINE // 4, len(problem.source) - SHOWN_LINE))
    line, more = _mask_part(problem.source, cut, cut + SHOWN_LINE), cut + SHOWN_LINE < len(problem.source)
    parts = line[: start - cut], line[start - cut : end - cut], line[end - cut :]
    before, marked, after = map(_one_line, parts)
    before, after = "…" * bool(cut) + before, after + "…" * more
    return before + marked + after, _cells(before), max(1, _cells(marked))


def _mask_part(line: str, start: int, end: int) -> str:
    """Return a part of the line with secrets masked, including those that are only half in it."""
    margin = min(start, 1000)
    return mask(line[start - margin : end + 1000])[margin : margin + end - start]


def _one_line(text: str) -> str:
    """Return text without control characters, line ends included, so that none can pretend to be another message."""
    return printable(text).replace("\t", "    ").replace("\n", "\\n")


def _cells(text: Iterable[str]) -> int:
    """Count the terminal columns of `text`."""
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _dump(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=True)
