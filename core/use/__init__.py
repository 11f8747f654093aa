"""Using a trained run: load it, predict with it, evaluate it."""
