"""Runs beside one another: the table of runs, differences of specs, and comparisons with their statistics."""
