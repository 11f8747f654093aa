"""`sweep`, `repeat` and `replay`: many runs of a spec, in other values, in other seeds, or the same once more."""
