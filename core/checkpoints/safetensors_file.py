"""The safetensors format: written directly from memory, and searched for tensors without torch.

The library's own writer reports a full disk without an error number, and makes files that only their owner can read.
The library loads the files.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import RecipeError
from taskrecipe.system import atomic_files
from taskrecipe.system.atomic_files import Buffer

if TYPE_CHECKING:
    import torch

METADATA = "__metadata__"
TIED = "tied"
"""The metadata key for names that share the memory of another: a JSON object, name to name."""
SHARDS = "shards"
"""The metadata key for tensors of which a file holds only a part: name to its start and the whole shape."""

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The name of each type in torch, and in the format."""


@dataclass(frozen=True)
class Shard:
    """The part of a tensor that one process holds: numbers that follow one another. Other processes hold the rest."""

    numbers: torch.Tensor
    start: int
    """How many numbers of the whole tensor come before them."""
    shape: tuple[int, ...]
    """The shape of the whole tensor."""


Tensors = Mapping[str, "torch.Tensor | Shard"]


def encode_tensors(tensors: Tensors) -> list[Buffer]:
    """Return the bytes of a file: its header, then the memory of each tensor, copied only where necessary.

    A tensor with two names is written once. Tensors that overlap in part are written in full.
    """
    owners, tied = _split_tied(tensors)
    dense = {name: _make_dense(name, _held_tensor(value)) for name, value in owners.items()}
    shards = {name: [value.start, *value.shape] for name, value in owners.items() if isinstance(value, Shard)}
    about = {key: json.dumps(names) for key, names in ((TIED, tied), (SHARDS, shards)) if names}
    header, order = _lay_out(dense, about)
    return [header, *(_view_bytes(dense[name]) for name in order)]


def write_one_by_one(path: Path, tensors: Mapping[str, torch.Tensor], load: Callable[[str], torch.Tensor]) -> None:
    """Write a new file of whole tensors, each of which `load` returns by its name only when it is written.

    `tensors` say what type and shape each of them has.
    """
    header, order = _lay_out(tensors, {})
    contents = (_view_bytes(_make_dense(name, load(name))) for name in order)
    atomic_files.write_new(path, chain([header], contents))


def file_order(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors in the order in which a file holds them."""
    # Wide types first, so that every tensor starts at a multiple of its item size.
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _lay_out(tensors: Mapping[str, torch.Tensor], about: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Return the header of a file, and the names of the tensors in the order in which they follow."""
    header: dict[str, Any] = {METADATA: {"format": "pt", **about}}
    order, end = file_order(tensors), 0
    for name in order:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _dtype_name(name, tensors[name]),
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, order


def tensors_size(tensors: Tensors) -> int:
    """Return how many bytes `tensors` take in a file, without its header."""
    return sum(_held_tensor(value).nbytes for value in _split_tied(tensors)[0].values())


def _held_tensor(value: torch.Tensor | Shard) -> torch.Tensor:
    return value.numbers if isinstance(value, Shard) else value


def _split_tied(tensors: Tensors) -> tuple[dict[str, torch.Tensor | Shard], dict[str, str]]:
    """Return the tensors to write, and the other names of these tensors."""
    first: dict[Any, str] = {}
    owners: dict[str, torch.Tensor | Shard] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        owner = first.setdefault(_memory_key(name, tensor), name)
        if owner == name:
            owners[name] = tensor
        else:
            tied[name] = owner
    return owners, tied


def _memory_key(name: str, tensor: torch.Tensor | Shard) -> Any:
    """Return a key that is equal for two tensors only if they are the same memory, read in the same way."""
    import torch

    if isinstance(tensor, Shard):  # there may be nothing of it here, and so no memory
        return id(tensor) if math.prod(tensor.shape) else name
    if tensor.layout is not torch.strided or not tensor.numel():
        return name
    where = tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()
    return *where, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _make_dense(name: str, tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if name == METADATA or tensor.layout is not torch.strided:
        raise RecipeError(
            f"a checkpoint can't keep tensor {name!r} ({tensor.layout}): it takes dense tensors of any other name"
        )
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _dtype_name(name: str, tensor: torch.Tensor) -> str:
    known = str(tensor.dtype).removeprefix("torch.")
    if known not in DTYPES:
        raise RecipeError(f"a checkpoint can't keep tensor {name!r} of type {known}; it takes {', '.join(DTYPES)}")
    return DTYPES[known]


def _view_bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def load_tensors(path: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Load every tensor of a file into its own memory, under each of its names."""
    from safetensors import safe_open

    with safe_open(path, framework="pt", device=device) as file:
        # The library maps the file; a clone doesn't keep the disk space of a file that is deleted later.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
        tied = json.loads((file.metadata() or {}).get(TIED, "{}"))
    return tensors | {name: tensors[owner] for name, owner in tied.items()}


@dataclass(frozen=True)
class Entry:
    """The type and shape of a tensor in a file, and where its bytes are."""

    dtype: str
    shape: list[int]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says about its tensors."""

    entries: dict[str, Entry]
    tied: dict[str, str]
    """Names that share the memory of another one."""
    shards: dict[str, list[int]]
    """Of tensors of which the file holds only a part: how many numbers come before it, then the whole shape."""


def read_header(path: Path) -> Header:
    """Read the header of a file."""
    with path.open("rb") as file:
        prefix, total = file.read(8), path.stat().st_size
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else total
        if size > total - 8:
            raise RecipeError(f"{path} is not a safetensors file: its header is longer than the file")
        try:
            header = json.loads(file.read(size))
            about = header.pop(METADATA, None) or {}
            tied, shards = (json.loads(about.get(key, "{}")) for key in (TIED, SHARDS))
            return Header({name: _make_entry(value, 8 + size) for name, value in header.items()}, tied, shards)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecipeError(f"{path} is not a safetensors file: its header can't be read ({error})") from error


def _make_entry(value: dict[str, Any], offset: int) -> Entry:
    start, end = value["data_offsets"]
    return Entry(value["dtype"], value["shape"], offset + start, offset + end)
