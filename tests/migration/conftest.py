"""The fixture that runs a command in this process."""

from tests.cli.conftest import recipe

__all__ = ["recipe"]
