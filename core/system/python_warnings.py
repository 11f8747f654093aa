"""Collect Python warnings, to print them together with the run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yield a list that holds every `UserWarning` of the block, each once, when the block ends.

    Other categories, such as deprecations, are raised again and treated as usual.
    """
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield messages
    for warning in caught:
        if not issubclass(warning.category, UserWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif str(warning.message) not in messages:
            messages.append(str(warning.message))
