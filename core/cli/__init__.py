"""The `recipe` command: parsing and printing; what it does lives in the modules it calls."""

from __future__ import annotations

import gc
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, TextIO, cast

from taskrecipe.system.garbage_collection import paused_garbage_collection

if TYPE_CHECKING:
    from taskrecipe.errors import RecipeError


def main() -> None:
    """Run the command. An error is printed as one message; the traceback of an unexpected one is kept in a file."""
    from taskrecipe.errors import RecipeError
    from taskrecipe.system.terminal import SafeStream, open_closed_streams

    open_closed_streams()
    # A run goes on when nobody reads its messages any more, and its exit code stays right.
    sys.stderr = cast(TextIO, SafeStream(sys.stderr))
    try:
        if _is_plain_validate(sys.argv[1:]):
            _validate(sys.argv[2:])
        else:
            from taskrecipe.cli.app import app
            from taskrecipe.cli.help.set_completion import join_bash_words

            join_bash_words()
            app(prog_name="recipe")
    except RecipeError as error:
        sys.stdout.flush()
        if not _is_printed_elsewhere(error):
            print(_json_message(error) if "--json" in sys.argv else _message(error), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone; nothing may be flushed to it at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except SystemExit:
        raise
    except BaseException as error:  # a library written in Rust may raise one that is no Exception
        from taskrecipe.system.terminal import printable
        from taskrecipe.system.tracebacks import describe_unexpected, keep_traceback

        message = describe_unexpected(error, keep_traceback(error))
        if not _is_printed_elsewhere(error):
            print(f"error: {printable(message)}\nhelp: recipe guide unexpected", file=sys.stderr)
        sys.exit(1)


def _is_printed_elsewhere(error: BaseException) -> bool:
    """Whether another process of the run prints this error: all of them fail together."""
    if "taskrecipe.run.launchers" not in sys.modules:
        return False
    from taskrecipe.run.launchers import prints_for_machine

    known: bool | None = getattr(error, "is_printed_elsewhere", None)
    return not prints_for_machine() if known is None else known


def _is_plain_validate(arguments: list[str]) -> bool:
    """Whether this is `recipe validate PATH…`, as hooks and CI call it all day: not worth loading a parser for."""
    return len(arguments) > 1 and arguments[0] == "validate" and not any(a.startswith("-") for a in arguments)


def _validate(paths: list[str]) -> None:
    _skip_pydantic_plugins()
    with paused_garbage_collection():
        from taskrecipe.cli.validate import validate

        code = validate(paths, "text")
        gc.freeze()  # or Python would search all objects for garbage before it exits
    sys.stdout.flush()
    sys.exit(code)


def _skip_pydantic_plugins() -> None:
    """Keep pydantic from searching for plugins of its own: that takes longer than validating a spec.

    PYDANTIC_DISABLE_PLUGINS alone would still import `importlib.metadata`, and with it the packages for e-mail. If a
    later pydantic has no such module, this has no effect.
    """
    loader = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules.setdefault(loader.__name__, loader)


def _message(error: RecipeError) -> str:
    from taskrecipe.errors import SpecError
    from taskrecipe.system.terminal import printable

    if isinstance(error, SpecError):
        return f"{error}\nhelp: recipe guide {error.problems[0].code}" if error.problems else str(error)
    text = str(error)
    for argument in sys.argv[1:]:
        if "\n" in argument:  # a message may have several lines, but a path in it must not start one
            text = text.replace(argument, argument.replace("\n", "\\n"))
    return f"error: {printable(text)}{_help_line(error)}"


def _help_line(error: RecipeError) -> str:
    return f"\nhelp: recipe guide {error.code}" if error.code else ""


def _json_message(error: RecipeError) -> str:
    """Return an error for programs: what a command that was called with `--json` prints on stderr."""
    from taskrecipe.errors import SpecError
    from taskrecipe.spec.diagnostics import problem_records
    from taskrecipe.system.secrets import to_json

    code = error.code or "usage"
    facts: dict[str, object] = {"code": code, "exit_code": error.exit_code, "message": str(error)}
    if error.code:
        facts["help"] = f"recipe guide {code}"
    if isinstance(error, SpecError):
        facts |= {"message": "the spec is wrong", "problems": problem_records(error.problems)}
    return to_json({"error": facts})
