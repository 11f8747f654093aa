"""Tensors of a checkpoint, in one file or in one file of each process that holds a part of every tensor.

The parts of a tensor are one piece of memory after the other. So the bytes of a whole tensor are those of its parts in
order, and any stretch of it can be read without the rest, whatever number of processes wrote it, and wherever they
cut it: between rows, or within one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.checkpoints.safetensors_file import DTYPES, Header, read_header
from taskrecipe.errors import DamagedCheckpointError

if TYPE_CHECKING:
    import torch

CHUNK = 2**24
"""Bytes that are read at a time where no tensor is made of them."""


def part_name(file: str, part: int, parts: int) -> str:
    """Return the name of the file that the process number `part` writes instead of `file`."""
    stem, _, ending = file.rpartition(".")
    return f"{stem}-{part + 1:05}-of-{parts:05}.{ending}"


def find_parts(files: Iterable[str], file: str) -> list[str]:
    """Return the names of the files that hold `file`: itself, or its parts in order; none if it is not there."""
    there = set(files)
    if file in there:
        return [file]
    stem, _, ending = file.rpartition(".")
    pattern = re.compile(rf"{re.escape(stem)}-([0-9]{{5}})-of-([0-9]{{5}})\.{re.escape(ending)}")
    found = sorted(name for name in there if pattern.fullmatch(name))
    parts = int(pattern.fullmatch(found[0])[2]) if found else 0  # type: ignore[index]
    if found != [part_name(file, part, parts) for part in range(parts)]:
        raise DamagedCheckpointError(f"of the parts of {file} some are missing; there are {', '.join(found)}")
    return found


@dataclass(frozen=True)
class Piece:
    """A part of a tensor in a file."""

    file: str
    offset: int
    """Where its bytes begin."""
    bytes: int
    start: int
    """How many bytes of the whole tensor come before it."""


@dataclass
class Stored:
    """One tensor, and where its parts are."""

    dtype: str
    """In the format's own words."""
    shape: tuple[int, ...]
    pieces: list[Piece] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The size of the whole tensor."""
        return sum(piece.bytes for piece in self.pieces)


class StoredTensors:
    """The tensors of a checkpoint's file, or of its parts, by name. Nothing is read before it is asked for.

    `open_file` returns the path of a file by its name, after it has verified the content.
    """

    def __init__(self, files: Iterable[str], open_file: Callable[[str], Path], folder: Path) -> None:
        self._open = open_file
        self.tensors: dict[str, Stored] = {}
        self.tied: dict[str, str] = {}
        """Other names of tensors."""
        for file in files:
            self._add_file(file, read_header(folder / file))
        for name, stored in self.tensors.items():
            _require_complete(name, stored, folder)

    def _add_file(self, file: str, header: Header) -> None:
        self.tied |= header.tied
        for name, entry in header.entries.items():
            start, *shape = header.shards.get(name, [0, *entry.shape])
            stored = self.tensors.setdefault(name, Stored(entry.dtype, tuple(shape)))
            before = start * _item_bytes(entry.dtype)
            stored.pieces.append(Piece(file, entry.start, entry.end - entry.start, before))

    @property
    def names(self) -> set[str]:
        """Every name, also those that share the memory of another one."""
        return {*self.tensors, *self.tied}

    def find(self, name: str) -> Stored:
        """Return where a tensor is, by any of its names."""
        return self.tensors[self.tied.get(name, name)]

    def read_bytes(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a whole tensor, some at a time."""
        for piece in self.find(name).pieces:
            with self._open(piece.file).open("rb") as file:
                file.seek(piece.offset)
                left = piece.bytes
                while left and (content := file.read(min(left, CHUNK))):
                    left -= len(content)
                    yield content

    def read(self, name: str) -> torch.Tensor:
        """Read a whole tensor."""
        shape = self.find(name).shape
        return self.read_stretch(name, 0, math.prod(shape)).reshape(shape)

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read the rows from `start` to before `stop`."""
        rest = self.find(name).shape[1:]
        size = math.prod(rest)
        return self.read_stretch(name, start * size, stop * size).reshape(stop - start, *rest)

    def read_stretch(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read the numbers from `start` to before `stop`; only the files that hold some of them are opened."""
        import torch

        stored = self.find(name)
        kind = next(ours for ours, theirs in DTYPES.items() if theirs == stored.dtype)
        tensor = torch.empty(stop - start, dtype=getattr(torch, kind))
        if not tensor.numel():
            return tensor
        memory, size = tensor.view(torch.uint8).numpy().data, tensor.element_size()
        begin, end = start * size, stop * size
        for piece in stored.pieces:
            first, last = max(begin, piece.start), min(end, piece.start + piece.bytes)
            if first < last:
                with self._open(piece.file).open("rb") as file:
                    file.seek(piece.offset + first - piece.start)
                    file.readinto(memory[first - begin : last - begin])
        return tensor


def _require_complete(name: str, stored: Stored, folder: Path) -> None:
    """Put the pieces of a tensor in order, and raise unless together they are all of it."""
    stored.pieces.sort(key=lambda piece: (piece.start, piece.bytes))
    end = 0
    for piece in stored.pieces:
        if piece.bytes and piece.start != end:
            break
        end += piece.bytes
    if end != math.prod(stored.shape) * _item_bytes(stored.dtype):
        raise DamagedCheckpointError(f"{folder} doesn't hold all of {name!r}")


def _item_bytes(dtype: str) -> int:
    """Return the size of one number: the format names most types by their bits."""
    bits = re.match(r"[A-Z]+([0-9]+)", dtype)
    return int(bits[1]) // 8 if bits else 1
