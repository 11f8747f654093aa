"""Making a model without its weights: what fills them is recorded, and done later, for one tensor at a time.

While `DeferredWeights` is entered, new tensors have no memory (torch's meta device), and every operation on them is
recorded. `fill` then repeats the operations in order, with memory, and hands over each tensor as soon as nothing more
changes it. Random numbers come from the generator in the same order as usual, so the weights are those that the model
would have got at once; but never more than a few tensors are in memory. An operation whose result is overwritten before
anyone reads it is repeated too if it draws random numbers, since those after it would be others, but its result is
dropped.

Weights that are read from a file are not recorded: they are mapped, and take memory only where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from typing_extensions import override


def _functions(names: str) -> set[Any]:
    return {getattr(torch.ops.aten, name) for name in names.split()}


FACTORIES = _functions(
    "empty empty_strided zeros ones full rand randn randperm normal empty_like zeros_like ones_like full_like "
    "rand_like randn_like new_empty new_zeros new_ones new_full"
)
"""What makes tensors that weights are made of. Other functions, such as `arange`, make real ones."""

COPIES = _functions("_to_copy clone cat stack")
"""What makes weights of those in a file, such as in another number type. Small ones are made at once."""

SMALL = 2**16

FILLS = _functions("normal_ uniform_ zero_ fill_ copy_ random_ exponential_")
"""What replaces everything that was in its first argument."""

RANDOM = _functions(
    "normal_ uniform_ random_ exponential_ bernoulli_ geometric_ cauchy_ log_normal_ rand randn randperm normal "
    "rand_like randn_like bernoulli multinomial"
)


class NotDeferrableError(Exception):
    """A model is made in a way that can't be repeated later."""


@dataclass(frozen=True)
class Deferred:
    """Stands for a tensor without memory in a recorded operation."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class Operation:
    """One recorded operation."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Deferred]
    """Tensors with storages of their own that it makes."""
    changed: set[int]
    """Storages that it writes to."""
    read: set[int]
    """Storages that it needs the content of."""
    is_random: bool
    """Whether it draws random numbers."""

    @property
    def storages(self) -> set[int]:
        """All storages that it has to do with."""
        return {*self.written, *self.read}

    @property
    def written(self) -> set[int]:
        """The storages whose content it makes or changes."""
        return {*(tensor.storage for tensor in self.made), *self.changed}


class _HiddenDevice(TorchFunctionMode):
    """Lets deferred tensors seem to have memory: functions that fill weights skip those that have none."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return False if func == _IS_META else func(*args, **(kwargs or {}))


_IS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]


class DeferredWeights(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what happens to new tensors, which have no memory for now."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        """The size of each deferred storage in bytes."""
        self._alive: list[Any] = []
        """The storages themselves: another one could get the same number otherwise."""
        self._tape: list[Operation] = []
        self._hidden = _HiddenDevice()

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [self.describe(tensor) for tensor in tree_iter((args, kwargs)) if isinstance(tensor, torch.Tensor)]
        is_new = _makes_weights(func, args, kwargs)
        if not is_new and not any(inputs):
            if func.overloadpacket in RANDOM and any(_is_real(value) for value in tree_iter(args)):
                raise NotDeferrableError(f"{func} draws random numbers into memory that is there already")
            return func(*args, **kwargs)
        without_memory = {**kwargs, "device": torch.device("meta")} if _names_device(kwargs) or is_new else kwargs
        outputs = func(*_move_to_meta(args), **_move_to_meta(without_memory))
        self._record(func, args, kwargs, outputs)
        return outputs

    def describe(self, tensor: torch.Tensor) -> Deferred | None:
        """Return what stands for a tensor in recorded operations; None if it is a real one."""
        if not _has_no_memory(tensor) or (storage := tensor.untyped_storage()._cdata) not in self._sizes:
            return None
        return Deferred(storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        args_then, kwargs_then = tree_map(self._replace, (args, kwargs))
        read = {value.storage for value in tree_iter((args_then, kwargs_then)) if isinstance(value, Deferred)}
        changed = {value.storage for value in self._written(func, args, kwargs)}
        made = [self._add_storage(tensor) for tensor in tree_iter(outputs) if self._is_new(tensor)]
        if not made and not changed:
            return  # another view of the same memory
        if func.overloadpacket in FILLS and self._covers_storage(args[0]):
            read -= changed
        is_random = func.overloadpacket in RANDOM
        self._tape.append(Operation(func, args_then, kwargs_then, made, changed, read, is_random))

    def _replace(self, value: Any) -> Any:
        return (self.describe(value) or value) if isinstance(value, torch.Tensor) else value

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Deferred]:
        """Yield what an operation writes to, as its schema says."""
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                for tensor in tree_iter(value):
                    found = self.describe(tensor) if isinstance(tensor, torch.Tensor) else None
                    if found:
                        yield found

    def _is_new(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and _has_no_memory(tensor) and self.describe(tensor) is None

    def _add_storage(self, tensor: torch.Tensor) -> Deferred:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._sizes[int(storage._cdata)] = storage.nbytes()
        found = self.describe(tensor)
        assert found is not None  # noqa: S101 - it was added just now
        return found

    def _covers_storage(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()

    @override
    def __enter__(self) -> DeferredWeights:
        # It looks at the numbers that it draws, so it can only be repeated as a whole.
        self._truncate = torch.nn.init._no_grad_trunc_normal_
        torch.nn.init._no_grad_trunc_normal_ = self._draw_truncated
        self._hidden.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @override
    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hidden.__exit__(*error)  # type: ignore[no-untyped-call]
        torch.nn.init._no_grad_trunc_normal_ = self._truncate

    def _draw_truncated(self, tensor: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
        found = self.describe(tensor)
        if found is None:
            return self._truncate(tensor, *options, **named)
        written = {found.storage}
        read = set() if self._covers_storage(tensor) else written
        self._tape.append(Operation(self._truncate, (found, *options), named, [], written, read, is_random=True))
        return tensor

    # Filling ----------------------------------------------------------------------------------------

    def fill(self, wanted: Sequence[torch.Tensor], take: Callable[[int, torch.Tensor], None]) -> None:
        """Repeat what was recorded, and call `take` with the place of each wanted tensor and its real content.

        A tensor is handed over when nothing changes it any more. `take` must not keep it.
        """
        places: dict[int, list[tuple[int, Deferred]]] = {}
        for place, tensor in enumerate(wanted):
            found = self.describe(tensor)
            if found:
                places.setdefault(found.storage, []).append((place, found))
        tape = _drop_needless(self._tape, set(places))
        last = {storage: number for number, operation in enumerate(tape) for storage in operation.storages}
        memory: dict[int, torch.UntypedStorage] = {}

        def hand_over(storage: int) -> None:
            held = memory.pop(storage, None)
            for place, found in places.get(storage, ()):
                take(place, _view(found, held or self._allocate(storage)))

        for storage in set(places) - set(last):
            hand_over(storage)
        for number, operation in enumerate(tape):
            self._repeat(operation, memory)
            for storage in operation.storages:
                if last[storage] == number:
                    hand_over(storage)
                elif not _is_read_next(tape, number, storage):
                    memory.pop(storage, None)

    def require_repeatable(self, wanted: Sequence[torch.Tensor]) -> None:
        """Raise if what fills some tensors reads one without memory that nobody has recorded."""
        storages = {found.storage for tensor in wanted if (found := self.describe(tensor))}
        for operation in _drop_needless(self._tape, storages):
            for value in tree_iter((operation.args, operation.kwargs)):
                if isinstance(value, torch.Tensor) and _has_no_memory(value):
                    raise NotDeferrableError(f"{operation.function} reads a tensor that has no memory yet")

    def _allocate(self, storage: int) -> torch.UntypedStorage:
        return torch.UntypedStorage(self._sizes[storage])  # type: ignore[no-untyped-call]

    def _repeat(self, operation: Operation, memory: dict[int, torch.UntypedStorage]) -> None:
        def materialize(value: Any) -> Any:
            if not isinstance(value, Deferred):
                return value
            if value.storage not in memory:
                memory[value.storage] = self._allocate(value.storage)
            return _view(value, memory[value.storage])

        args, kwargs = tree_map(materialize, (operation.args, operation.kwargs), is_leaf=_is_deferred)
        outputs = [value for value in tree_iter(operation.function(*args, **kwargs)) if isinstance(value, torch.Tensor)]
        if operation.made:
            for made, tensor in zip(operation.made, outputs, strict=True):
                # A tensor without memory may have another layout than a real one.
                if tensor.stride() == made.stride and not tensor.storage_offset():
                    memory[made.storage] = tensor.untyped_storage()
                else:
                    materialize(made).copy_(tensor)


def _is_deferred(value: Any) -> bool:
    return isinstance(value, Deferred)


def _view(found: Deferred, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a real tensor in the place of a deferred one."""
    empty = torch.empty(0, dtype=found.dtype)
    return empty.set_(storage, found.offset, found.shape, found.stride)


def _drop_needless(tape: list[Operation], wanted: set[int]) -> list[Operation]:
    """Return the operations that what is wanted depends on, and all that draw random numbers."""
    kept: list[Operation] = []
    needed = set(wanted)
    for operation in reversed(tape):
        if operation.is_random or needed & operation.written:
            needed |= operation.read
            kept.append(operation)
    return kept[::-1]


def _is_read_next(tape: list[Operation], number: int, storage: int) -> bool:
    """Whether the next operation on a storage needs what is in it now."""
    following = next(operation for operation in tape[number + 1 :] if storage in operation.storages)
    return storage in following.read


def _has_no_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta"


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not _has_no_memory(value)


def _names_device(kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("device") is not None


def _makes_weights(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function would make a real tensor that may be large."""
    given = [value for value in tree_iter(args) if isinstance(value, torch.Tensor)]
    device = torch.device(kwargs["device"]) if _names_device(kwargs) else None
    on_cpu = device.type == "cpu" if device else all(tensor.device.type == "cpu" for tensor in given)
    is_copy = func.overloadpacket in COPIES and sum(tensor.numel() for tensor in given) >= SMALL
    return on_cpu and (func.overloadpacket in FACTORIES or is_copy)


def _move_to_meta(values: Any) -> Any:
    return tree_map(lambda value: value.to("meta") if isinstance(value, torch.Tensor) else value, values)
