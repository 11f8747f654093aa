"""Plugins: the kinds there are, how they are found by name, and the ones that are built in."""
