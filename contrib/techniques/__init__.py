"""Techniques that change how any recipe is trained, written only against the public contract."""

if not __name__.startswith("taskrecipe."):
    raise ImportError(f"import this package as 'taskrecipe.contrib.techniques', not as '{__name__}'")
