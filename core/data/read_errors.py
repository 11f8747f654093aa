"""What a library's error means to the person who supplied the data: one sentence instead of a traceback."""

from __future__ import annotations

import gc
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from taskrecipe.errors import DataError, RecipeError
from taskrecipe.system.library_output import quiet_libraries

_DIFFERENCE = re.compile(
    r"^Schema at index .*|^Couldn't cast .* don't match|there are \d+ (new|missing) columns[^)]*\)"
)
_NO_ROWS = ("EmptyDataError", "SchemaInferenceError", "StopIteration")


@contextmanager
def explain_read_errors(what: str, split: str | None = None) -> Iterator[None]:
    """Turn what a library raises while it reads `what` into a `DataError`, and hide its log messages."""
    try:
        with quiet_libraries("datasets", "huggingface_hub"):
            yield
    except (RecipeError, MemoryError):
        raise
    except Exception as error:  # a reader's errors are as many as the libraries it is made of
        with abandoned_files():
            _forget(error)
        raise DataError(f"{what}: {reason(error)}", split=split) from error


def reason(error: BaseException) -> str:
    """Return the sentence about the first error of a chain."""
    error = _root(error)
    message = re.sub(r"^Error tokenizing data\. C error: ", "", str(error).strip()).replace("\n", " ")
    if type(error).__name__ in _NO_ROWS or message.endswith("corresponds to no data!"):
        return "there are no rows"
    if isinstance(error, UnicodeDecodeError) or "Invalid UTF8" in message:
        return "the text is not UTF-8; save it as UTF-8"
    if isinstance(error, KeyError):
        return f"{message} is missing"
    if isinstance(error, EOFError):
        return f"the file ends too early: {message}"
    if difference := _DIFFERENCE.search(message):
        return f"not all files, or not all parts of one, have the same columns and types: {difference[0]}"
    return message or type(error).__name__


@contextmanager
def abandoned_files() -> Iterator[None]:
    """Close the files that readers left open in this block, without warnings: readers never close them themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()  # pandas' reader holds itself, and its file with it


def _forget(error: BaseException | None) -> None:
    """Drop the values that an error's tracebacks hold on to."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _root(error: BaseException) -> BaseException:
    while type(error).__name__.startswith("DatasetGeneration") and error.__cause__ is not None:
        error = error.__cause__
    return error
