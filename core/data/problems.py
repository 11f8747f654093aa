"""Problems of the data, collected and reported together, like those of a spec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from taskrecipe.errors import DataError

_MOST = 10


class Problems:
    """Collects errors about data, to raise all of them at once."""

    def __init__(self) -> None:
        self.found: list[DataError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep a `DataError` of the block instead of raising it."""
        try:
            yield
        except DataError as error:
            self.found.append(error)

    def raise_found(self) -> None:
        """Raise what was collected: a single error as it is, several as one that lists the first of them."""
        if not self.found:
            return
        lines = list(dict.fromkeys(str(error) for error in self.found))
        first = self.found[0]
        if len(lines) == 1:
            raise first
        more = f"\n  … and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
        listed = "".join(f"\n  {line}" for line in lines[:_MOST])
        raise DataError(f"there are {len(lines)} problems:{listed}{more}") from first
