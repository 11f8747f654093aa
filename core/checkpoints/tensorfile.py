"""The safetensors format: writing it straight from memory, and finding tensors in it without torch.

The library's own writer turns a full disk into a text without its number, and makes files that only their owner can
read. Loading is left to the library.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.core.durable import Buffer
from taskrecipe.core.errors import RecipeError

if TYPE_CHECKING:
    import torch

METADATA = "__metadata__"
TIED = "tied"
"""The metadata key for names that share the memory of another: a JSON object, name to name."""

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
"""What torch calls a type, and what the format calls it."""


def encode(tensors: Mapping[str, torch.Tensor]) -> list[Buffer]:
    """The bytes of a file of `tensors`: its header, then the memory of each, which is copied only if it must be.

    A tensor that has two names is written once; partly overlapping ones are written each in full.
    """
    owners, tied = _split_tied(tensors)
    dense = {name: _dense(name, tensor) for name, tensor in owners.items()}
    header: dict[str, Any] = {METADATA: {"format": "pt", **({TIED: json.dumps(tied)} if tied else {})}}
    buffers: list[Buffer] = []
    end = 0
    # Wide types first, so that every tensor starts at a multiple of its item size.
    for name in sorted(dense, key=lambda name: (-dense[name].element_size(), name)):
        start, end = end, end + dense[name].nbytes
        header[name] = {
            "dtype": _dtype(name, dense[name]),
            "shape": list(dense[name].shape),
            "data_offsets": [start, end],
        }
        buffers.append(_memory(dense[name]))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *buffers]


def size(tensors: Mapping[str, torch.Tensor]) -> int:
    """How many bytes of a file `tensors` take, without its header."""
    return sum(tensor.nbytes for tensor in _split_tied(tensors)[0].values())


def _split_tied(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors that must be written, and the names that mean one of these."""
    first: dict[Any, str] = {}
    owners: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        owner = first.setdefault(_place(name, tensor), name)
        if owner == name:
            owners[name] = tensor
        else:
            tied[name] = owner
    return owners, tied


def _place(name: str, tensor: torch.Tensor) -> Any:
    """What two tensors agree in exactly if they are one."""
    import torch

    if tensor.layout is not torch.strided or not tensor.numel():
        return name
    where = tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()
    return *where, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _dense(name: str, tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if name == METADATA or tensor.layout is not torch.strided:
        raise RecipeError(
            f"a checkpoint can't keep tensor {name!r} ({tensor.layout}): it takes dense tensors of any other name"
        )
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _dtype(name: str, tensor: torch.Tensor) -> str:
    known = str(tensor.dtype).removeprefix("torch.")
    if known not in DTYPES:
        raise RecipeError(f"a checkpoint can't keep tensor {name!r} of type {known}; it takes {', '.join(DTYPES)}")
    return DTYPES[known]


def _memory(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def load(path: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Every tensor of a file, in memory of its own and under each of its names."""
    from safetensors import safe_open

    with safe_open(path, framework="pt", device=device) as file:
        # The library maps the file; a clone doesn't hold the room of a file that is deleted later.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
        tied = json.loads((file.metadata() or {}).get(TIED, "{}"))
    return tensors | {name: tensors[owner] for name, owner in tied.items()}


@dataclass(frozen=True)
class Entry:
    """What a tensor is, and where its bytes lie in its file."""

    dtype: str
    shape: list[int]
    start: int
    end: int


def read_entries(path: Path) -> dict[str, Entry]:
    """Every tensor of a file by name, from the header alone."""
    with path.open("rb") as file:
        prefix, total = file.read(8), path.stat().st_size
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else total
        if size > total - 8:
            raise RecipeError(f"{path} is not a safetensors file: its header doesn't fit into it")
        try:
            header = json.loads(file.read(size))
            header.pop(METADATA, None)
            return {name: _entry(value, 8 + size) for name, value in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecipeError(f"{path} is not a safetensors file: its header can't be read ({error})") from error


def _entry(value: dict[str, Any], offset: int) -> Entry:
    start, end = value["data_offsets"]
    return Entry(value["dtype"], value["shape"], offset + start, offset + end)
