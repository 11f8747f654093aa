"""Runs side by side: the table of runs, differences of specs, and comparisons with their statistics."""
