"""Write text from anywhere to a terminal: without its control characters, and without errors that end a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO


def printable(text: str) -> str:
    """Return `text` with control and direction characters escaped. Line ends and tabs stay.

    Text from data or a model's files could otherwise move the cursor, change colors or rewrite what was printed.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


def open_closed_streams() -> None:
    """Let standard streams that are closed lead to the null device: else a file opened later would take their place."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - it stays open


class SafeStream:
    """A text stream whose errors are ignored: a reader that has gone, a full disk, a terminal that was closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as much as can be written."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            with suppress(OSError, ValueError):
                encoding = self._stream.encoding or "ascii"
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError):  # ValueError: it was closed
            pass
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
