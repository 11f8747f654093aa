"""Refuse specs of other versions of the format, and rewrite older ones in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.errors import SpecError, UsageError
from taskrecipe.spec.diagnostics import Problem, make_printable, show_value
from taskrecipe.spec.sources import Source, read_source
from taskrecipe.spec.spec import SPEC_VERSION

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

Migration = Callable[["TOMLDocument"], None]

MIGRATIONS: dict[int, Migration] = {}
"""For each older version, a function that changes a document to the next version and keeps comments."""


def require_version(sources: Sequence[Source], migrations: Mapping[int, Migration] = MIGRATIONS) -> None:
    """Refuse files of another version before anything else is checked: its rules are unknown."""
    problems = [problem for source in sources if (problem := _version_problem(source, migrations))]
    if problems:
        raise SpecError(problems)


def migrate(path: Path, migrations: Mapping[int, Migration] = MIGRATIONS) -> bool:
    """Rewrite the file at `path` for this version and keep comments; False if it has this version already."""
    source = read_source(path)
    version = _version(source)
    if version is None:
        message = f"spec_version must be an integer that says what the file was written for, such as {SPEC_VERSION}"
        raise SpecError([source.problem(source.positions.of_value(("spec_version",)), "missing-key", message)])
    if version == SPEC_VERSION:
        return False
    if not _can_migrate(version, migrations):
        require_version([source], migrations)
    _replace(path, _migrate_text(source.text, version, migrations))
    return True


def _migrate_text(text: str, version: int, migrations: Mapping[int, Migration]) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    for step in range(version, SPEC_VERSION):
        migrations[step](document)
        document["spec_version"] = step + 1
    return tomlkit.dumps(document)


def _replace(path: Path, text: str) -> None:
    """Replace the content of the file in one step. A symbolic link stays and points to the same file."""
    from taskrecipe.system import atomic_files

    target = path.resolve()
    try:
        mode = target.stat().st_mode
        if b"\r\n" in target.read_bytes():
            text = text.replace("\n", "\r\n")
        atomic_files.replace(target, text.encode())
        target.chmod(mode)
    except OSError as error:
        raise UsageError(f"{make_printable(str(path))} can't be rewritten: {error.strerror or error}") from None


def _version(source: Source) -> int | None:
    version = source.values.get("spec_version")
    return version if isinstance(version, int) and not isinstance(version, bool) else None


def _can_migrate(version: int, migrations: Mapping[int, Migration]) -> bool:
    steps = range(version, SPEC_VERSION) if version >= min(migrations, default=SPEC_VERSION) else ()
    return bool(steps) and all(step in migrations for step in steps)


def _version_problem(source: Source, migrations: Mapping[int, Migration]) -> Problem | None:
    version = _version(source)
    if version is None or version == SPEC_VERSION:
        return None
    if _can_migrate(version, migrations):
        advice = f"`recipe migrate {source.name}` rewrites it"
    elif version > SPEC_VERSION:
        advice = "a newer taskrecipe reads it"
    else:
        advice = "no such version exists"
    message = f"spec_version is {show_value(version)} and this taskrecipe reads {SPEC_VERSION}: {advice}"
    return source.problem(source.positions.of_value(("spec_version",)), "spec-version", message)
