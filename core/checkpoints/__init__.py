"""Checkpoints: written to a draft folder, synced, renamed; only then are old ones deleted."""
