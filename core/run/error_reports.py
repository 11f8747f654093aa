"""Errors as JSON values, so that one process can raise what another has met."""

from __future__ import annotations

import time
from typing import Any

from taskrecipe import errors
from taskrecipe.errors import Interrupted, RecipeError
from taskrecipe.system.tracebacks import describe_unexpected, keep_traceback

ErrorReport = dict[str, Any]


def report_error(error: BaseException) -> ErrorReport:
    """Return an error as JSON values. The traceback of an unexpected one is kept in a file, which the message names."""
    if isinstance(error, RecipeError):
        return _make_report(error, str(error), error.exit_code)
    return _make_report(error, describe_unexpected(error, keep_traceback(error)), 1)


def _make_report(error: BaseException, message: str, code: int) -> ErrorReport:
    return {"kind": type(error).__name__, "message": message, "code": code, "time": time.time()}


def is_cause(report: ErrorReport) -> bool:
    """Whether an error explains itself; what torch raises when another process has gone does not."""
    return report["kind"] in vars(errors)


def make_error(report: ErrorReport, prefix: str = "") -> RecipeError:
    """Make the error that a process has reported."""
    message = prefix + report["message"]
    if report["kind"] == "Interrupted":
        return Interrupted(report["code"] - 128, message)
    kind = getattr(errors, report["kind"], RecipeError)
    error: RecipeError = kind.__new__(kind)
    Exception.__init__(error, message)
    error.exit_code = report["code"]
    return error
