"""The `recipe` command: parsing and printing; what it does lives in the modules it calls."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; an error made for its reader is shown as a message, anything else as a traceback."""
    from taskrecipe.core.errors import RecipeError

    try:
        from taskrecipe.core.cli.app import app

        app(prog_name="recipe")
    except RecipeError as error:
        sys.stdout.flush()
        print(_message(error), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _message(error: Exception) -> str:
    from taskrecipe.core.errors import SpecError

    return str(error) if isinstance(error, SpecError) else f"error: {error}"
