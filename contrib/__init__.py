"""Further recipes and techniques, written only against the public contract."""

if not __name__.startswith("taskrecipe."):
    raise ImportError(f"import this package as 'taskrecipe.contrib', not as '{__name__}'")
