"""The `recipe` command: parsing and printing; what it does lives in the modules it calls."""

from __future__ import annotations

import os
import sys

from taskrecipe.core.startup import uncollected


def main() -> None:
    """Run the command; an error made for its reader is shown as a message, anything else as a traceback."""
    from taskrecipe.core.errors import RecipeError

    try:
        if _is_plain_validate(sys.argv[1:]):
            _validate(sys.argv[2:])
        else:
            from taskrecipe.core.cli.app import app

            app(prog_name="recipe")
    except RecipeError as error:
        sys.stdout.flush()
        if not _reported(_message(error), error.exit_code):
            print(_message(error), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # who reads our output has seen enough; nothing may be flushed to it at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception:
        import traceback

        if not _reported(traceback.format_exc(), 1):
            raise
        sys.exit(1)


def _reported(message: str, code: int) -> bool:
    """Leave it to the launcher, where there is one, to tell what ended one of several processes."""
    from taskrecipe.core.launch import report

    return report(message, code)


def _is_plain_validate(arguments: list[str]) -> bool:
    """Whether this is `recipe validate PATH…`, as hooks and CI call it all day: not worth loading a parser for."""
    return len(arguments) > 1 and arguments[0] == "validate" and not any(a.startswith("-") for a in arguments)


def _validate(paths: list[str]) -> None:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them takes longer than a spec
    with uncollected():
        from taskrecipe.core.cli.validate import validate
    code = validate(paths, "text")
    sys.stdout.flush()
    sys.exit(code)


def _message(error: Exception) -> str:
    from taskrecipe.core.errors import SpecError

    return str(error) if isinstance(error, SpecError) else f"error: {error}"
