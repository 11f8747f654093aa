"""The `recipe` command."""
