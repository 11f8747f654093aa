"""The command in this process, as the tests of commands run it."""

from tests.cli.conftest import recipe

__all__ = ["recipe"]
