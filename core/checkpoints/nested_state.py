"""Optimizer state as tensors and JSON, without pickle: plain values, tensors and containers of them.

The skeleton is the state with each tensor replaced by its name. JSON has no tuples, no keys but strings, and no
infinities, so these and tensors become objects whose one key names the type:

    {"dict": [[key, value], …]}   {"tuple": […]}   {"float": "nan"}   {"tensor": name}   {"object": [kind, attributes]}

A kind is looked up among the classes that this process has registered. No class is imported because a file names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from taskrecipe.checkpoints.safetensors_file import METADATA, Shard
from taskrecipe.errors import PluginError

Kind = TypeVar("Kind", bound=type)

_kinds: dict[str, type] = {}


def keepable(kind: Kind) -> Kind:
    """Let objects of this class be kept in checkpoints, attribute by attribute, without calling `__init__`.

    It is for an optimizer with objects in its state. Call it where the optimizer is built, or use it as a decorator.
    """
    _kinds[_kind_name(kind)] = kind
    return kind


def _kind_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def pack_state(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Split `state` into tensors by name and a skeleton of JSON values; a tensor that is found twice is kept once.

    The part of a tensor that one process holds may stand for it.
    """
    packing = _Packing()
    return packing.tensors, packing.encode(state, ())


def unpack_state(tensors: Mapping[str, torch.Tensor], skeleton: Any) -> Any:
    """Return the state that `pack_state` split."""
    return _Unpacking(tensors).decode(skeleton)


class _Packing:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def encode(self, value: Any, path: tuple[Any, ...]) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, (torch.Tensor, Shard)):
            return self._tensor(value, path)
        if isinstance(value, dict):
            pairs = value.items()
            return {"dict": [[self.encode(key, path), self.encode(item, (*path, key))] for key, item in pairs]}
        if type(value) in (list, tuple):
            items = [self.encode(item, (*path, index)) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        return self._object(value, path)

    def _tensor(self, tensor: Any, path: tuple[Any, ...]) -> Any:
        name = self._names.get(id(tensor)) or self._new_name(path)
        self._names[id(tensor)], self.tensors[name] = name, tensor
        if isinstance(tensor, Shard) or tensor.is_contiguous() or 0 in tensor.stride():
            return {"tensor": name}
        # The memory layout of a matrix decides the order of its multiplications, and so the last bits of the result.
        return {"tensor": name, "stride": list(tensor.stride())}

    def _new_name(self, path: tuple[Any, ...]) -> str:
        name = "/".join(str(key) for key in path).encode("ascii", "backslashreplace").decode()
        while name in self.tensors or name == METADATA:
            name += "'"
        return name

    def _object(self, value: Any, path: tuple[Any, ...]) -> Any:
        kind = _kind_name(type(value))
        if _kinds.get(kind) is not type(value) or not hasattr(value, "__dict__"):
            raise PluginError(
                f"a checkpoint can't keep {'/'.join(map(str, path)) or 'this state'}, which is a {kind}: "
                f"it takes None, bool, int, float, str, tensors, dicts, lists, tuples, and classes registered with "
                f"taskrecipe.keepable; the optimizer's plugin must register this one"
            )
        return {"object": [kind, self.encode(vars(value), path)]}


class _Unpacking:
    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._strided: dict[str, torch.Tensor] = {}

    def decode(self, skeleton: Any) -> Any:
        if isinstance(skeleton, list):
            return [self.decode(item) for item in skeleton]
        if not isinstance(skeleton, dict):
            return skeleton
        tag, content = next(iter(skeleton.items()))
        match tag:
            case "dict":
                return {self.decode(key): self.decode(value) for key, value in content}
            case "tuple":
                return tuple(self.decode(item) for item in content)
            case "float":
                return float(content)
            case "tensor":
                return self._tensor(content, skeleton.get("stride"))
            case "object":
                return self._object(*content)
        raise PluginError(f"optimizer state has a value marked {tag!r}, which this version can't read")

    def _tensor(self, name: str, stride: list[int] | None) -> torch.Tensor:
        tensor = self._tensors[name]
        if stride is None or tensor.ndim != len(stride):  # the part of a tensor that a process holds is flat
            return tensor
        if name not in self._strided:
            empty = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
            self._strided[name] = empty.copy_(tensor)
        return self._strided[name]

    def _object(self, kind: str, attributes: Any) -> Any:
        if kind not in _kinds:
            raise PluginError(
                f"optimizer state has a {kind}, which is not registered with taskrecipe.keepable here; "
                f"another version of the optimizer's plugin may have written this checkpoint"
            )
        value: Any = object.__new__(_kinds[kind])
        vars(value).update(self.decode(attributes))
        return value
