"""The tasks that come with the project, one file each."""

if not __name__.startswith("taskrecipe."):
    raise ImportError(f"import this package as 'taskrecipe.recipes', not as '{__name__}'")
