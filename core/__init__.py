"""The part every task shares: spec, registry, contract, data, loop, checkpoints, commands."""

if not __name__.startswith("taskrecipe."):
    raise ImportError(f"import this package as 'taskrecipe.core', not as '{__name__}'")
