"""What the user should know though it stops nothing: Python's own warnings, gathered to be shown with the run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[list[str]]:
    """Gather what is told by `warnings.warn`, each once, when the block ends; deprecations and such go their way."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    for warning in caught:
        if not issubclass(warning.category, UserWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif str(warning.message) not in notes:
            notes.append(str(warning.message))
