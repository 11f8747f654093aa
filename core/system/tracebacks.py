"""Tracebacks of unexpected errors: kept in a file that the message names, instead of printed."""

from __future__ import annotations

import os
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from taskrecipe.system.secrets import redact

NOTE = "traceback: "
"""What a note of an error begins with that names the file of its traceback."""


def keep_traceback(error: BaseException, folder: Path | None = None) -> Path | None:
    """Write the traceback of an error into `folder`, or into a new temporary file; return the file.

    An error whose traceback is kept already is left alone. Where nothing can be written, None is returned.
    """
    known = [note.removeprefix(NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(NOTE)]
    if known:
        return Path(known[0])
    text = "".join(traceback.format_exception(error))
    for target in (folder, None):
        with suppress(OSError):
            path = write_traceback(text, target)
            error.add_note(f"{NOTE}{path}")
            return path
    return None


def write_traceback(text: str, folder: Path | None = None) -> Path:
    """Write a traceback into `traceback.txt` of a folder, or into a new temporary file."""
    if folder is None:
        descriptor, name = tempfile.mkstemp(prefix="recipe-traceback-", suffix=".txt")
        os.close(descriptor)
        path = Path(name)
    else:
        path = folder / "traceback.txt"
    path.write_text(redact(text), encoding="utf-8", errors="backslashreplace")
    return path


def describe_unexpected(error: BaseException, path: Path | None) -> str:
    """Return the message for an error that no code has turned into a sentence of its own."""
    kept = f"its traceback is in {path}" if path else "its traceback could not be written"
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_working_folder():
        return f"the working folder has been deleted; {kept}"
    if isinstance(error, OSError) and error.strerror:  # the system's answer, not a mistake in the code
        names = " -> ".join(f"'{name}'" for name in (error.filename, error.filename2) if name is not None)
        return f"{error.strerror}{f': {names}' if names else ''}; {kept}"
    if isinstance(error, MemoryError):
        return f"there was not enough memory; {kept}"
    first_line = str(error).strip().partition("\n")[0] or "no message"
    return f"unexpected {type(error).__name__}: {first_line}. This is a bug, here or in a plugin; {kept}"


def _has_working_folder() -> bool:
    try:
        return Path.cwd().is_dir()
    except OSError:
        return False
