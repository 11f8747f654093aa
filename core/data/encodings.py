"""Which encoding a text file has: its byte order mark, UTF-8, or Western European if nothing speaks against it.

A guess that could be wrong changes words in silence. So only text that is almost certainly Western European is read as
such, with a warning; any other text that is not UTF-8 is refused with its line, and `[data].encoding` decides.
"""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from taskrecipe.data.compression import open_bytes
from taskrecipe.errors import DataError

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the start of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

_WITH_MARK = ("utf-8", "utf-16", "utf-32")

# Letters and signs that Western European texts hold. Left out are those that other encodings use for common letters.
_WESTERN = re.compile(
    rb"[\x00-\x7f\x80\x85\x91-\x97\x99\xa0\xa1\xa3\xa7\xa9\xab\xae\xb0\xb4\xbb\xc0-\xcf\xd1-\xd6\xd8-\xdc\xdf-\xef"
    rb"\xf1-\xf6\xf8-\xfc\xff]*"
)
_LONG_RUN = re.compile(rb"[\x80-\xff]{3}")
_UTF8_LETTER = re.compile(rb"[\xc3-\xf4][\x80-\xbf]")


def find_encoding(path: Path, given: str | None, split: str) -> str:
    """Return the encoding to read a file with: the given one, or the one its bytes show."""
    with open_bytes(path) as file:
        mark = _find_mark(file.read(4))
        ignored = given is None or (mark is not None and codecs.lookup(given).name in _WITH_MARK)
        encoding = (mark or "utf-8") if ignored else str(given)
        file.seek(0)
        number = _find_bad_line(file, encoding)
        if number is None:
            return encoding
        file.seek(0)
        if given is None and mark is None and _is_western(file):
            message = (
                f"split {split!r}: '{path}' is not UTF-8 (line {number}); it is read as cp1252, Western European. "
                'Set [data].encoding = "cp1252" if that is right'
            )
            warnings.warn(message, stacklevel=2)
            return "cp1252"
    name = encoding.removesuffix("-sig").upper() if given is None else encoding
    message = f"'{path}': line {number} is not {name}; save the file as UTF-8, or name its encoding in [data].encoding"
    raise DataError(message, split=split)


def require_known_encoding(name: str) -> None:
    """Refuse the name of an encoding that Python does not know."""
    try:
        "".encode(name)
    except LookupError:
        message = f"[data].encoding = {name!r} is not an encoding of text; examples are utf-8, cp1252, shift_jis"
        raise DataError(message) from None


def _find_mark(start: bytes) -> str | None:
    return next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), None)


def _find_bad_line(file: BinaryIO, encoding: str) -> int | None:
    """Return the first line that is not in this encoding."""
    if _is_decodable(iter(partial(file.read, 2**20), b""), encoding):
        return None
    file.seek(0)
    decoder = codecs.getincrementaldecoder(encoding)()
    number = 1
    with suppress(UnicodeError):
        for piece in file:  # which ends at a byte, not always at a letter
            number += decoder.decode(piece).count("\n")
    return number


def _is_decodable(pieces: Iterator[bytes], encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for piece in pieces:
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


def _is_western(file: BinaryIO) -> bool:
    """Whether no line speaks against cp1252: an unusual sign, a word of foreign letters, or letters in UTF-8."""
    return all(
        line.isascii() or (_WESTERN.fullmatch(line) and not _LONG_RUN.search(line) and not _UTF8_LETTER.search(line))
        for line in file
    )
