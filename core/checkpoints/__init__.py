"""Checkpoints as commits: written beside, verified, renamed, pointed to, and only then pruned."""
