"""Dropout as a function of the row: the same masks however an update is split, padded or packed.

torch draws one number after the other, so a mask depends on all rows that were drawn for before. Here an element's
mask is a hash of

    seed, update, row, which draw of the forward pass, position in the row, channel (or head and key position)

so micro-batches, processes and padding don't enter. `RowDropout` is a torch function mode: while the model's forward
pass runs, it takes the place of the functions that draw random numbers, wherever a model calls them: `nn.Dropout`,
`F.dropout`, attention's own dropout, drop-path and layer drop. Dropped attention probabilities are computed
explicitly, as torch does on a CPU too; without attention dropout the fused kernel is used.

The mode costs some microseconds for every call of a torch function. So a model that draws nothing in its first forward
pass runs without it from then on, for as long as torch's generators show that nothing was drawn.

The first dimension of a tensor holds the rows, or several entries of each row, one after the other (choices, windows,
flattened positions). What has another shape, and random functions that are not known here, draw from torch's
generator as they would without this, and a warning names them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from taskrecipe.training.dropout_functions import HANDLERS
from taskrecipe.training.dropout_hash import (
    hash_bits,
    hash_places,
    make_noise,
    make_uniform,
    mix_indexes,
    row_keys,
    site_key,
)
from taskrecipe.training.dropout_packs import Documents, hash_packed_bits
from taskrecipe.training.randomness import generator_states, restore_generators

T = TypeVar("T")

TABLE = 4096
"""Length of the table of mixed indexes at the start: lengths and widths up to this are compiled in one piece."""

DROPOUT, UNIFORM = 0, 1
"""Kinds of draws, each counted separately within a forward pass."""


class Place(NamedTuple):
    """Which rows a forward pass is for, and how many draws of each kind it has made."""

    keys: torch.Tensor | None = None
    """One int32 key a row; None if draws don't follow rows now."""
    documents: Documents | None = None
    """Where rows are packs of several documents: which document each token is of."""
    dropouts: int = 0
    uniforms: int = 0


class RowDropout(TorchFunctionMode):
    """While it is entered and rows are set, random numbers of a forward pass are functions of the rows.

    `may_rest` allows `run` to leave it out where a model draws nothing, and to compute a pass twice if it then does.
    """

    def __init__(self, seed: int, device: torch.device, may_rest: bool = False) -> None:
        super().__init__()
        self.seed, self.device, self.may_rest = seed, device, may_rest
        mix_indexes(TABLE, device)
        self.update = 0
        self.rows: Sequence[int] = ()
        self.place = Place()
        self.has_run = self.has_drawn = False
        self.warned: set[str] = set()

    @contextmanager
    def use_rows(self, update: int, rows: Sequence[int]) -> Iterator[None]:
        """Draw for these rows of an update. Draws are counted from the first again."""
        outer, self.update, self.rows = (self.update, self.rows, self.place), update, rows
        self.place = Place() if self.is_resting else self._first_place()
        try:
            yield
        finally:
            self.update, self.rows, self.place = outer

    def run(self, forward: Callable[[], T]) -> T:
        """Run a forward pass, and return what it returns."""
        if not self.may_rest:
            with self:
                return forward()
        states = generator_states(self.device)
        if self.is_resting:
            outputs = forward()
            if generator_states(self.device) == states:
                return outputs
            # It has begun to draw: back to before this pass, and once more.
            del outputs
            restore_generators(self.device, states)
            self.has_drawn, self.place = True, self._first_place()
        with self:
            outputs = forward()
        self.has_run = True
        if not self.warned and generator_states(self.device) != states:
            self.warn_unkeyed("a random function that is not known here")
        return outputs

    @property
    def is_resting(self) -> bool:
        """Whether forward passes run without this mode, since nothing was drawn so far."""
        return self.may_rest and self.has_run and not self.has_drawn

    def _first_place(self) -> Place:
        return Place(torch.from_numpy(row_keys(self.seed, self.update, self.rows)).to(self.device))

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return the contexts of a checkpointed layer's two passes: the second draws what the first has drawn."""
        return nullcontext(), nullcontext() if self.place.keys is None else self._at(self.place)

    @contextmanager
    def _at(self, place: Place) -> Iterator[None]:
        outer, self.place = self.place, place
        try:
            with self:
                yield
        finally:
            self.place = outer

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = HANDLERS.get(func)
        if handler is None or self.place.keys is None:
            return func(*args, **(kwargs or {}))
        return handler(self, func, *args, **(kwargs or {}))

    # Drawing ----------------------------------------------------------------------------------------

    def noise(self, like: torch.Tensor, shape: Sequence[int], rate: float) -> torch.Tensor | None:
        """Return what dropout multiplies by; None if the shape doesn't follow the rows."""
        with torch.no_grad():
            bits = self._bits(site_key(DROPOUT, self.place.dropouts), shape)
            if bits is None:
                return None
            self.place, self.has_drawn = self.place._replace(dropouts=self.place.dropouts + 1), True
            return make_noise(bits, rate, like.dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return numbers from 0 to 1; None if the shape doesn't follow the rows. A single number is the update's."""
        keys, site = self.place.keys, site_key(UNIFORM, self.place.uniforms)
        if keys is None or (shape and (shape[0] != len(keys) or self.place.documents is not None)):
            return None
        self.place, self.has_drawn = self.place._replace(uniforms=self.place.uniforms + 1), True
        with torch.no_grad():
            if not shape:
                return make_uniform(hash_places(self._update_key(), site, [1]), dtype).view([])
            return make_uniform(hash_places(keys, site, shape), dtype)

    def _bits(self, site: int, shape: Sequence[int]) -> torch.Tensor | None:
        keys, documents = self.place.keys, self.place.documents
        if keys is None or not shape:
            return None
        if documents is not None:
            return hash_packed_bits(documents, site, shape)
        if shape[0] % len(keys) == 0:
            return hash_bits(keys, site, shape)
        # One entry for all rows, such as an embedding of positions.
        return hash_bits(self._update_key(), site, shape) if shape[0] == 1 else None

    def _update_key(self) -> torch.Tensor:
        return torch.from_numpy(row_keys(self.seed, self.update, [2**64 - 1])).to(self.device)

    def warn_unkeyed(self, func: Any, detail: str = "") -> None:
        """Name a random function that draws by another rule, once."""
        self.has_drawn = True
        name = getattr(func, "__name__", str(func))
        if name not in self.warned:
            self.warned.add(name)
            warnings.warn(
                f"[train].dropout = 'by_row': the model calls {name}{detail}, which can't follow the rows: "
                "what it draws depends on [train].accumulate, processes and padding",
                stacklevel=2,
            )


# What recipes call ----------------------------------------------------------------------------------


def current_mode() -> RowDropout | None:
    """Return the mode that is entered now, if any."""
    from torch.overrides import _get_current_function_mode_stack

    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return next((mode for mode in stack if isinstance(mode, RowDropout)), None)


def narrow_rows(positions: torch.Tensor | Sequence[int]) -> AbstractContextManager[None]:
    """Run a model on some rows of the micro-batch only: those at these positions, in this order."""
    return _changed_place(lambda mode, keys: Place(keys[torch.as_tensor(positions, device=mode.device)]))


def use_documents(numbers: torch.Tensor, positions: torch.Tensor) -> AbstractContextManager[None]:
    """Run a model on packs: the number of each token's document, and its position there (both rows x length).

    A document gets the masks that it gets as a row of this number.
    """

    def find_place(mode: RowDropout, keys: torch.Tensor) -> Place:
        found = torch.from_numpy(row_keys(mode.seed, mode.update, numbers.cpu().numpy())).to(mode.device)
        return Place(keys, Documents(found, positions), *mode.place[2:])

    return _changed_place(find_place)


def use_members(members: torch.Tensor, positions: torch.Tensor) -> AbstractContextManager[None]:
    """Run a model on packs of the micro-batch's rows: which of them each token is of, and its position there."""
    return _changed_place(lambda mode, keys: Place(keys, Documents(keys[members], positions), *mode.place[2:]))


@contextmanager
def _changed_place(change: Callable[[RowDropout, torch.Tensor], Place]) -> Iterator[None]:
    """Let the mode that is entered draw for what `change` makes of its rows; without such a mode, do nothing."""
    mode = current_mode()
    if mode is None or mode.place.keys is None:
        yield
        return
    outer, mode.place = mode.place, change(mode, mode.place.keys)
    try:
        yield
    finally:
        mode.place = outer
