"""`recipe validate`: check specs and print all their problems."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from taskrecipe.errors import PluginError, SpecError, UsageError
from taskrecipe.plugins.registry import Registry, installed
from taskrecipe.spec.diagnostics import Format, Problem, render_problems
from taskrecipe.spec.validation import validate as validate_file
from taskrecipe.spec.validation import validate_part

PART = "_"
"""How the name of a file starts that others extend, and that is no spec of its own."""


def validate(paths: list[str], format: Format, registry: Registry | None = None) -> int:
    """Check the specs at `paths` (files, folders, globs), print the problems, and return the exit code.

    Of a folder all *.toml files are checked, except names that start with `.`. A name that starts with `_` is a part
    that others extend: it need not be complete.
    """
    specs = list(dict.fromkeys(spec for path in paths for spec in _specs(path)))
    registry = registry or installed()
    failed = {spec: problems for spec, problems in _problems_of_all(specs, registry) if problems}
    problems = [problem for found in failed.values() for problem in found]
    is_report = format in ("json", "sarif")
    if problems or is_report:
        print(render_problems(problems, format, color=_is_terminal()))
    print(_summary(len(specs), len(failed), len(problems)), file=sys.stderr if is_report else sys.stdout)
    if problems and not is_report:
        print(f"help: recipe guide {problems[0].code}")
    return _exit_code(problems)


def _problems_of_all(specs: list[Path], registry: Registry) -> Iterator[tuple[Path, list[Problem]]]:
    """Yield the problems of each spec. If there are foreign plugins, other processes check the specs.

    A plugin that hangs or exits then is a problem of the specs that use it, and the others are still checked.
    """
    if all(plugin.is_own for plugin in registry.plugins):
        yield from ((spec, problems_of(spec, registry)) for spec in specs)
        return
    from dataclasses import asdict

    from taskrecipe.plugins.isolation import Failure, run_isolated

    answers = run_isolated(specs, lambda spec: [asdict(problem) for problem in problems_of(spec, registry)])
    for spec, answer in zip(specs, answers, strict=True):
        if isinstance(answer, Failure):
            message = f"{answer.plugin or 'checking it'} {answer.reason}"
            yield spec, [Problem(str(spec), 1, 1, "plugin-failed", message)]
        else:
            yield spec, [Problem(**problem) for problem in answer]


def problems_of(spec: Path, registry: Registry) -> list[Problem]:
    """Return all problems of one spec. A plugin that fails is one of them, so that other specs are still checked."""
    try:
        (validate_part if spec.name.startswith(PART) else validate_file)(spec, registry)
    except SpecError as error:
        return error.problems
    except PluginError as error:
        return [Problem(str(spec), 1, 1, "plugin-failed", str(error))]
    return []


def _specs(path: str) -> Iterator[Path]:
    found: list[Path] = []
    if os.path.isdir(path):  # noqa: PTH112 - a path may contain anything, even NUL
        found = list(_in_folder(path))
    elif glob.has_magic(path) and not os.path.lexists(path):
        with suppress(ValueError):  # it is no valid pattern: nothing matches it
            found = sorted(_matches(path))
    else:
        found = [Path(path)]
    if not found:
        raise UsageError(f"no spec found: {path!r} {'has no *.toml' if os.path.isdir(path) else 'matches nothing'}")  # noqa: PTH112
    yield from found


def _in_folder(path: str) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".toml") and name[0] != ".")


def _matches(pattern: str) -> Iterator[Path]:
    """Yield the files that match a glob. Links to folders are not followed by `**`: they may form loops."""
    path = Path(pattern)
    for found in Path(path.anchor).glob(str(path.relative_to(path.anchor))):
        hidden = [part for part in found.parts if part.startswith(".") and part not in path.parts]
        if not hidden and not found.is_dir():
            yield found


def _summary(specs: int, failed: int, problems: int) -> str:
    if not failed:
        return f"{_count(specs, 'spec')} checked, no problems"
    return f"{_count(specs, 'spec')} checked, {_count(problems, 'problem')} in {failed}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _exit_code(problems: Iterable[Problem]) -> int:
    codes = {problem.code for problem in problems}
    return PluginError.exit_code if "plugin-failed" in codes else SpecError.exit_code if codes else 0


def _is_terminal() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
