"""`recipe validate`: check specs, and show every problem of those that have some."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from taskrecipe.core.errors import PluginError, SpecError, UsageError
from taskrecipe.core.registry import Registry, installed
from taskrecipe.core.spec.check import validate as validate_file
from taskrecipe.core.spec.diagnostics import Format, Problem, render


def validate(paths: list[str], format: Format, registry: Registry | None = None) -> int:
    """Check the specs at `paths` (files, folders, globs), print the problems, and return the exit code.

    In folders all *.toml are taken, but for names that start with `_`, which only serve to be extended, or with `.`.
    """
    specs = list(dict.fromkeys(spec for path in paths for spec in _specs(path)))
    registry = registry or installed()
    failed = {spec: problems for spec in specs if (problems := problems_of(spec, registry))}
    problems = [problem for found in failed.values() for problem in found]
    is_report = format in ("json", "sarif")
    if problems or is_report:
        print(render(problems, format, colour=_is_terminal()))
    print(_summary(len(specs), len(failed), len(problems)), file=sys.stderr if is_report else sys.stdout)
    return _exit_code(problems)


def problems_of(spec: Path, registry: Registry) -> list[Problem]:
    """Every problem of one spec; a plugin that fails is one too, so that it stops no other spec."""
    try:
        validate_file(spec, registry)
    except SpecError as error:
        return error.problems
    except PluginError as error:
        return [Problem(str(spec), 1, 1, "plugin-failed", str(error))]
    return []


def _specs(path: str) -> Iterator[Path]:
    if os.path.isdir(path):  # noqa: PTH112 - a path may hold anything, NUL too
        found = list(_in_folder(path))
    elif glob.has_magic(path) and not os.path.lexists(path):
        found = [Path(name) for name in sorted(glob.glob(path, recursive=True)) if not os.path.isdir(name)]  # noqa: PTH112, PTH207
    else:
        found = [Path(path)]
    if not found:
        raise UsageError(f"no spec found: {path!r} {'has no *.toml' if os.path.isdir(path) else 'matches nothing'}")  # noqa: PTH112
    yield from found


def _in_folder(path: str) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".toml") and name[0] not in "._")


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
